"""Skill `@perstack/base`: files, processes, and the tools by which a Run tracks and ends its work.

It runs in the host's process, without an MCP server. Where to look:

plugin.py       registration with the host
skill.py        session that maps each tool to its function; the workspace and the directories that [sandbox] adds
tools.py        tools as a model sees them; their arguments and results
workspace.py    path resolution, confined to the workspace by open handles
files.py        names, kinds and identities of files; error messages
reading.py      text files by lines, images and PDFs
writing.py      writing, appending, editing, moving, deleting
directories.py  listing, creating, deleting; file information
exec.py         processes and their output

File tools never open a path directly: `OpenWorkspace.place` walks it and returns a name in an open directory. Every
protected file (state, keys, definitions, git's executable files) is refused there, by name and by identity.

Change together: a tool in `tools.SPECS` with its function in `skill`; a protected name with the sandbox runtimes, which
must hide these files too.
"""
