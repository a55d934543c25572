"""The stage: where received messages lie safely before they are FINed and from which Spark replays."""
