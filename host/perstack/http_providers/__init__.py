"""Library for providers that reach models over HTTP.

A provider plugin has its own settings (`EndpointSettings`), a codec of pure functions, and a subclass of `HttpProvider`
that connects them. Everything else is here, because all must share it: limits, errors, and the protection of keys.

provider.py           registration with the host; connections that are opened by the first request
endpoint.py           address, credentials and settings, checked before anything is sent
messages.py           encoding of requests so that a later one extends an earlier one's bytes; parts of decoders
structured_output.py  the part of a result's JSON schema that every vendor accepts
client.py             POST requests and the events of their replies, with limits of size, silence and time
errors.py             each failure as a ProviderError: status, the endpoint's own message, whether to retry

A key must reach no other endpoint and no log: `endpoint.choose_base_url` refuses an address that only a workspace's
`.env` sets, and `client` removes `Endpoint.secrets` from errors. A new header with a credential needs nothing more; a
header without one belongs in `endpoint._PUBLIC_HEADERS`.
"""
