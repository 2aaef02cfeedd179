"""Images and documents: read from attachments, repaired in results of tools, and fitted to the limits of an endpoint.

Attachments (`attachments`) are read before a Run begins: the bytes tell the type, the model must take it, and the blob
is on disk before an event names it. A result of a tool is repaired when it arrives (`fitting.repair_result`): it gets
the type that its bytes have, and an image that nobody can read becomes a line of text. A request is fitted when it is
sent (`fitting.fit_request`): what its endpoint would refuse stays in the history, and what is sent in its place, a
smaller image or a line of text, is recorded by `adaptRequest`.

`file_headers` reads headers: types, sizes, defects, and the most tokens that a medium costs, which a budget reserves.
`limits` decides which media do not fit an endpoint. Both are pure. `smaller_images` is the only module that decodes
images, with Pillow, and that imports it.

The kernel has the types (`core.messages.media`, `BlobPart`), the limits of an endpoint as data, and the adaptations of
requests. It asks for this package by `ATTACHMENTS` and `MEDIA` (`engine.runs.input_protocols`), and only for an
attachment, an image or a document: any other Run imports none of it. A new limit is a field of `MediaLimits`, a rule in
`limits`, and rows in `http_providers.media_limits`.
"""
