"""What makes ``format("nsq")`` known without ``register``: installed as a top-level module (setup.cfg maps it).

Spark imports every top-level module of the name pyspark_* when a session first looks for a data source, whichever
that is. So this must load quickly and without fail: ``source`` loads nothing heavy before it is used.
"""

from gnsq_like.spark.source.data_source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
