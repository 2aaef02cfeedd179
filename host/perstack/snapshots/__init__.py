"""Record the files of a workspace as snapshots, compare snapshots, and restore files from one.

Snapshots: `workspace_walk` walks the workspace and yields a tree (folders and file contents, as blobs named by digest)
and the blobs that are new; `snapshots` stores the blobs and makes the `recordSnapshot` event; `stored_trees` reads
them; `changes` orders a Job's snapshots and computes what each step, Run and Job changed.

Rewinds: `rewind` makes a plan from two trees. `rewind_lock` keeps other rewinds and the drivers of Jobs out.
`rewind_steps` checks each path against the plan, stages the new files, and makes the steps, which are renames.
`rewind_journal` stores the steps on disk before the first one, so that a rewind that was killed is completed or undone
by the next process that opens the workspace. Every step can be repeated after a crash.

Files may change at any moment and tree data may be forged. So all paths are opened relative to an open folder without
following links, sizes and depths are bounded, and blobs are checked against their digests. The format of trees is in
`trees`: a change there affects the walk, `stored_trees` and `rewind_steps`.

The kernel knows two protocols: `engine.log.snapshot_protocol` (`job_snapshots`), and the lease of a workspace that is
not being rewound (`job_files.workspace_lease`). `trees`, `tree_diff` and
`ignore_rules` are pure.
"""
