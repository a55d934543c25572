"""Times of a web application's Producer that bear a busy machine; for tests that have it in their own process.

By default a publish fails after two seconds, and at once when a connection took five: that is for requests.
"""

#: For Django's setting NSQ; Flask has the same names with NSQ_ before them.
PATIENT = {"PUBLISH_TIMEOUT": 100.0, "CONNECT_TIMEOUT": 100.0}
