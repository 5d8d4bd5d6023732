"""One authenticated session with the API server: credentials, deadlines, typed failures.

    target = where_is_api(settings.api, os.environ)            # session.target
    session = await open_session(target, clock, os.environ)    # session.opening
    answer = await session.call(Request(...))                  # session.client: kube.base.Api
    async with session.stream(request, idle_s=60) as lines: ...
    session.state       SessionState, frozen, of any thread    # session.state
    session.credentials Credentials, for the kubelet's client  # session.credentials
    await session.close()

`Session(endpoint, credentials, trust, clock)` is the same for another server, as the kubelet.
`load_http()` of session.opening loads the HTTP library, which takes longest; call it in a thread.
"""
