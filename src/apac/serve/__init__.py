"""The HTTP server of `apac serve`: the Open Inference Protocol v2, an upload for people, and a page.

`engine.py` decides the images of all requests together; `model.py` is a run with its engine. `protocol.py` is the
protocol's JSON, `pictures.py` reads uploaded files, `events.py` describes a decision while it is made. `routes.py` has
the routes, `services.py` what they share, and `app.py` builds the application from them. `guard.py` checks each request
before a route sees it (limits, token, headers, log), `headers.py` what uploaded files would cost, and `connections.py`
limits the connections. `server.py` and `workers.py` run the processes.
"""
