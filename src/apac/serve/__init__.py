"""The HTTP server of `apac serve`: the Open Inference Protocol v2, an upload for people, and a page.

`engine.py` decides the images of all requests together; `model.py` is a run with its engine. `protocol.py` is the
protocol's JSON, `pictures.py` reads uploaded files, `events.py` describes a decision while it is made. `app.py` has the
routes, `guard.py` everything that stands before them (limits, token, headers, log), `server.py` the processes.
"""
