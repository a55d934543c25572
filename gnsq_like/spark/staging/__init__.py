"""The stage: messages are stored here before they are FINed, and Spark replays them from here."""
