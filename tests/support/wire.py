"""Answers of nsqd, as bytes."""

#: To IDENTIFY, as a real nsqd 1.3.0 gives it (docs/internals 1.3).
ANSWER = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
    b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250}'
)

#: What no nsqd answers to IDENTIFY.
BAD_ANSWERS = [
    b"",
    b"NO",
    b"[]",
    b"3",
    b"\xff",
    b'{"max_rdy_count":"many"}',
    b'{"max_rdy_count":true}',
    b'{"version":3}',
    b'{"msg_timeout":1e3}',
    b'{"msg_timeout":99999999999999999999}',
    b"[" * 100_000,
]
