"""Which nsqds there are (``lookupd_poller``), and when each address is tried (``redial``)."""
