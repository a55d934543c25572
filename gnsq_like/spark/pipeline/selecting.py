"""Spark's part between nsqd and the tasks that write: none, or ``select`` and ``where``.

Spark refuses aggregates and window functions in expressions of a stream. No row is filtered out before it reaches the
writer, which counts all messages: one that ``where`` leaves out, or that was rejected, has null as its body.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import PipelineFailed
from gnsq_like.spark.pipeline.transform import BODY, KEPT, applied, load_function, made_column, packed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from gnsq_like.spark.pipeline.writing import WritingPlan

#: The source's bodies, while "body" is that of a target.
_BEFORE = "body_before"

_EXAMPLE = 'it must be columns such as "user STRING, at TIMESTAMP"'

#: Spark's errors that are about data.
_OF_DATA = re.compile(r"SQLSTATE: (?:2[123]|P0)")


def targets_of(pipeline: Pipeline) -> dict[str | None, Pipeline]:
    """The topics with settings of their own, and None for all others, each with its pipeline."""
    return {None: pipeline, **{topic: pipeline.for_topic(topic) for topic in pipeline.topics}}


def type_made(given: Mapping[str, Any], name: str, body: DataType) -> DataType:
    """The type of bodies after a function, which is called with no rows to see it. Raises InvalidOption.

    :param name: the name of the table in the configuration
    :param body: the type before it
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

    from gnsq_like.spark.pipeline.writing import KEPT_TYPES

    function = load_function(given, name)
    if function is None:
        return body
    schema = KEPT_TYPES.append(pa.field(BODY, to_arrow_type(body, timezone="UTC")))
    try:
        nothing = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
        made = applied(function, nothing)
        return from_arrow_type(made.schema.field(BODY).type)
    except (PipelineFailed, PySparkException) as exc:
        raise InvalidOption(f"{name}.function", given["function"], first_line(exc)) from exc


def is_sql(pipeline: Pipeline) -> bool:
    """Whether Spark has to do something between the source and the writer."""
    return any({"select", "where"} & own.transform.keys() for own in targets_of(pipeline).values())


def selected(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The source's rows with a column of bodies for each target; a body is null if it is another target's or left out.

    :raises InvalidOption: an expression is wrong
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    from gnsq_like.spark.source.by_columns import check_fields

    options = pipeline.parsed_options
    if not options.is_parsed:
        rows = rows.withColumn("raw", F.col(BODY)).withColumn("reason", F.lit(None).cast("string"))
    rows = rows.withColumn(_BEFORE, F.col(BODY))
    others = list(pipeline.topics)
    for number, (topic, own) in enumerate(targets_of(pipeline).items()):
        is_its = (
            F.col("topic") == topic if topic is not None else ~F.col("topic").isin(*others) if others else F.lit(True)
        )
        column = options.body_of(topic) if topic is not None else BODY
        # In the expressions, the bodies of each topic are called "body".
        rows = rows.withColumn(BODY, F.col(_BEFORE if column == BODY else column))
        name = f"topics.{topic}.transform" if "transform" in pipeline.topics.get(topic or "", {}) else "transform"
        fits = is_its & F.col("reason").isNull()
        key, text = "where", own.transform.get("where", "true")
        try:
            fits = fits & F.expr(text)
            rows.select(fits)
            key, text = "select", own.transform.get("select", [])
            made = F.struct(*map(F.expr, [text] if isinstance(text, str) else text)) if text else F.col(BODY)
            rows = rows.withColumn(made_column(number), F.when(fits, made))
            if text:
                check_fields(rows.schema[made_column(number)].dataType, f"{name}.select", str(text))
        except (AnalysisException, ParseException) as exc:
            raise InvalidOption(f"{name}.{key}", text, f"{first_line(exc)}{_hint(exc)}") from exc
    return rows.select(*KEPT, "size", "raw", "reason", *map(made_column, range(len(others) + 1)))


def _hint(exc: Exception) -> str:
    text = str(exc)
    if "GENERATOR" in text:
        return ". Several rows of one message are made by a function"
    if "GROUP_BY" in text or "AGGREGATE" in text:
        return ". It may do what it would do to each message alone; add up in a query of the table"
    return ""


def first_line(exc: BaseException) -> str:
    """Spark's own sentence, without its codes."""
    line = str(exc).strip().partition("\n")[0]
    return re.sub(r"^\[[A-Z_0-9.]+\] ?|\s*SQLSTATE: \w+.*$", "", line).rstrip(". ")


def schema_of(ddl: str, option: str) -> StructType:
    """The schema of a DDL, as Spark reads it; raises InvalidOption if bodies cannot be parsed or stored with it.

    :param option: the option that has the DDL
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    from gnsq_like.spark.source.by_columns import check_fields

    try:
        found = DataType.fromDDL(ddl)
    except PySparkException as exc:
        raise InvalidOption(option, ddl, f"{_EXAMPLE}; Spark says: {first_line(exc)}") from exc
    if not isinstance(found, StructType):
        raise InvalidOption(option, ddl, _EXAMPLE)
    check_fields(found, option, ddl)
    return found


def data_error(exc: Exception) -> str:
    """The error of an SQL expression about a value that it cannot take, as a sentence; "" for other errors."""
    text = str(exc)
    if not _OF_DATA.search(text):
        return ""
    return (
        f"select or where fails for a message: {first_line(exc).partition(' If necessary')[0].rstrip('.')}. For values "
        f"that may be wrong, take functions that give null, such as try_cast, try_divide and try_element_at"
    )


# -- the stream ---------------------------------------------------------------------------------------------


def stream_of(pipeline: Pipeline, spark: SparkSession) -> tuple[DataFrame, WritingPlan]:
    """The stream, and the plan of the tasks that write: its rows are for ``BatchWriter``.

    :raises InvalidOption: a transformation is wrong
    """
    from gnsq_like.spark.pipeline.tasks import reports

    if not is_sql(pipeline):
        plan = plan_for(pipeline)
        return reports(spark, plan), plan
    return transformed(spark.readStream.format("nsq").options(**pipeline.parsed_given).load(), pipeline)


def transformed(rows: DataFrame, pipeline: Pipeline) -> tuple[DataFrame, WritingPlan]:
    """The rows that tasks write, and the plan for it.

    :param rows: the source's, parsed if the pipeline has SQL
    :raises InvalidOption: a transformation is wrong
    """
    if not is_sql(pipeline):
        return rows, plan_for(pipeline)
    rows = selected(rows, pipeline)
    kinds = {topic: rows.schema[made_column(at)].dataType for at, topic in enumerate(targets_of(pipeline))}
    return rows, plan_for(pipeline, kinds)


def plan_for(pipeline: Pipeline, made: Mapping[str | None, DataType] | None = None) -> WritingPlan:
    """The plan of the tasks that write. Raises InvalidOption.

    :param made: the types of the bodies that Spark's plan makes, by the topic; None if tasks get bodies as bytes
    """
    from pyspark.sql.types import BinaryType

    from gnsq_like.spark.pipeline.writing import Bodies, WritingPlan

    bodies = {}
    for topic, own in targets_of(pipeline).items():
        option = f"topics.{topic}.schema" if "schema" in pipeline.topics.get(topic or "", {}) else "parse.schema"
        schema = schema_of(own.schema, option) if own.schema else None
        before = made[topic] if made is not None else schema or BinaryType()
        name = f"topics.{topic}.transform" if "transform" in pipeline.topics.get(topic or "", {}) else "transform"
        function = load_function(own.transform, name)
        bodies[topic] = Bodies(schema, before, type_made(own.transform, name, before), packed(function))
    # Tasks need nothing else.
    return WritingPlan(replace(pipeline, spark={}, dead_letters={}), bodies, is_made=made is not None)
