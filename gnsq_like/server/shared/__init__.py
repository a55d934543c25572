"""The parts that nsqd and nsqlookupd share."""
