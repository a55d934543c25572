"""One connection to one nsqd: ``handshake`` opens it, ``write_buffer`` writes."""
