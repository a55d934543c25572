"""Makes ``format("nsq")`` known without ``register``. It is installed as a top-level module.

Spark imports every top-level module named pyspark_* when a session first looks for any data source. So this must
load quickly and never fail: ``data_source`` loads nothing heavy before it is used.
"""

from gnsq_like.spark.source.data_source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
