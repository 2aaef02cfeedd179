"""Experts that write and improve definitions, for `perstack create`.

The Experts ship with perstack (`experts/create-expert`). `experts` combines them with the settings and permissions of
the project they work for, and computes which new programs, endpoints and plugins a changed definition would use.
`trial` gives them two tools: `validateDefinition`, and `tryExpert`, which runs an Expert of the new definition in a
bounded copy of the project. A model wrote that definition, so a trial must neither start programs nor reach anything
that the user's own definition does not already reach: `new_executables` decides, `Trials` enforces.
"""
