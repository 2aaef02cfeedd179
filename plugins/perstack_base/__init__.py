"""The skill `@perstack/base`: files, processes and the signs by which a Run tracks and ends its work, in process.

plugin.py       what the host finds at its start
skill.py        a session: which function answers which tool
specs.py        the tools as a model sees them
workspace.py    paths: every one is walked from a handle of the workspace, so that none leads out
reading.py      text files, line by line, however big
writing.py      writing, appending, editing, moving, deleting
directories.py  listing, making, deleting; what is known of a file
media.py        images and PDFs
execute.py      processes, and their output
group.py        ending a process with all it started
output.py       much output in little memory
"""
