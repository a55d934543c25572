"""Transformations: SQL, or a function of a DataFrame, between the parsed bodies and the table.

A batch is an accident: which messages it has depends on when it began. So a transformation may only do what it would do
to each message alone: choose columns, derive them, leave messages out, make several rows of one. An aggregate, a join
or a limit would be one of the batch, without a word. And a repeated batch must give the same rows, so nothing may
depend on the time or on chance.

Both are read off Spark's own plan of the transformation, which must be a single chain of the operators in ``_CHAIN``
down to the messages. The plan is also how rows keep their message: the column ``nsq``, which holds the message's
columns, is added to each projection of that chain, so that neither SQL nor functions have to pass it on.

The plan is Catalyst's, through py4j; this module is the only one that touches it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption, did_you_mean
from gnsq_like.spark.pipeline import paths
from gnsq_like.spark.pipeline.faults import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

#: The keys of [transform].
KEYS = ("sql", "function")
#: The view of the messages, the column of what belongs to the message, and the number of a row in its message.
VIEW, MESSAGE, PART = "messages", "nsq", "part"

#: The alias below which the plan is ours.
_OURS = "gnsq_like_messages"
_ORDER = "gnsq_like_order"
#: The operators that work on each row alone, and keep all others.
_CHAIN = {"Project", "Filter", "SubqueryAlias", "View", "Generate", "PipeOperator"}
#: What others would do, as the end of "it ...".
_MEANINGS = {
    "Aggregate": "aggregates",
    "Join": "joins",
    "LateralJoin": "joins",
    "GlobalLimit": "has a LIMIT",
    "LocalLimit": "has a LIMIT",
    "Offset": "has an OFFSET",
    "Distinct": "drops duplicates",
    "Deduplicate": "drops duplicates",
    "Window": "has a window function",
    "Sort": "sorts",
    "Union": "reads the messages more than once",
    "Sample": "takes a sample",
    "WithCTE": "has a WITH, instead of a query in FROM,",
}
#: For more messages of a batch than these, a transformation does not fail: it is wrong.
MOST_REFUSED = 20
#: Of Spark's errors, those of data; of Python's, all are.
_OF_DATA = re.compile(r"SQLSTATE: (?:2[123]|3[89]|P0)")
_SUBQUERIES = {"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery", "InSubquery"}
_TIMES = re.compile(r"(Now|Local\w+|Current(?!Row)\w+?)\$?")
#: Types of Spark that tables cannot have, beside intervals.
_NO_COLUMNS = ("void", "variant", "geometry", "geography", "time")


def check_given(given: Mapping[str, Any], name: str) -> None:
    """Raise InvalidOption unless these are the keys of a transformation. Does not need Spark.

    :param name: that of the table in the configuration
    """
    for key, value in given.items():
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f"; there are {' and '.join(KEYS)}"
            raise InvalidOption(f"{name}.{key}", value, f"there is no such key{hint}")
        if not isinstance(value, str) or not value.strip():
            raise InvalidOption(f"{name}.{key}", value, "it must be text")
    if len(given) > 1:
        raise InvalidOption(name, dict(given), "give sql or function, not both")
    sql = given.get("sql")
    if sql is not None and not re.match(r"(\s|--.*\n|/\*(?s:.*?)\*/)*SELECT\b", sql, re.IGNORECASE):
        raise InvalidOption(f"{name}.sql", sql, f"it must begin with SELECT, and read the view {VIEW}")
    function = given.get("function")
    if function is not None and not re.fullmatch(r"[\w.]+:\w+", function):
        raise InvalidOption(f"{name}.function", function, 'it must be "module:name"')


def load_function(given: Mapping[str, str], name: str) -> Callable[[Any], Any] | None:
    """Import the function, if there is one. Raises InvalidOption."""
    target = given.get("function")
    if target is None:
        return None
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as exc:  # whatever the user's module raises
        reason = f"it cannot be imported: {type(exc).__name__}: {exc}".partition("\n")[0]
        raise InvalidOption(f"{name}.function", target, reason) from exc
    if not callable(found):
        raise InvalidOption(f"{name}.function", target, f"it is no function, but {type(found).__name__}")
    function: Callable[[Any], Any] = found
    return function


class Transform:
    """One transformation.

    :param given: ``sql`` or ``function``
    :param name: that of the table in the configuration
    :raises InvalidOption: the function cannot be imported
    """

    def __init__(self, given: Mapping[str, str], name: str = "transform") -> None:
        self._given = given
        self._key, self._text = next(iter(given.items()))
        self._name = f"{name}.{self._key}"
        self._function = load_function(given, name)
        #: A copy of the user's session, where the view is.
        self._session: SparkSession | None = None

    def check(self, spark: SparkSession, schema: StructType | None, kept: Sequence[str]) -> StructType:
        """The type of ``body`` in the table; raises InvalidOption if the transformation cannot be used.

        :param schema: of the parsed bodies; None for bytes
        :param kept: the columns beside the body
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        kinds = {"timestamp": "timestamp", "seen_at": "timestamp", "attempts": "int"}
        columns = [F.lit(None).cast(schema or BinaryType()).alias("body")]
        columns += [F.lit(None).cast(kinds.get(name, "string")).alias(name) for name in kept]
        found = self.apply(spark.range(0).select(*columns), schema, kept).schema["body"].dataType
        for field in found.fields:  # type: ignore[attr-defined]
            wrong = _unwritable(field.dataType)
            if wrong:
                raise self._wrong(f"column {field.name} is {wrong.upper()}, which tables cannot have: CAST it")
        result: StructType = found  # type: ignore[assignment]
        return result

    def apply(self, rows: DataFrame, schema: StructType | None, kept: Sequence[str]) -> DataFrame:
        """Rows of ``body`` and the kept columns, transformed; with ``part``, the number of a row in its message."""
        from pyspark.sql import DataFrame, Window
        from pyspark.sql import functions as F

        names = schema.fieldNames() if schema is not None else []
        if MESSAGE in map(str.lower, names):
            raise self._wrong(f"the field {MESSAGE} of the schema has the name of the column of the message")
        fields = [F.col("body").getField(name).alias(name) for name in names] if names else [F.col("body")]
        messages = rows.select(*fields, F.struct(*kept).alias(MESSAGE)).alias(_OURS)
        session = self._copy_of(rows.sparkSession)
        chain = _Chain(session, self._plan_of(messages, session), self._wrong)
        out = DataFrame(chain.dataset, session)
        body = F.struct(*[F.col(_quoted(name)).alias(name) for name in chain.columns])
        identity = [F.col(MESSAGE).getField(name).alias(name) for name in kept]
        if not chain.multiplies:
            return out.select(body.alias("body"), *identity, F.lit(0).alias(PART))
        # The rows of a message follow each other, in the order in which they were made of it.
        ordered = out.select(body.alias("body"), *identity, F.monotonically_increasing_id().alias(_ORDER))
        window = Window.partitionBy("nsqd_address", "topic", "id").orderBy(_ORDER)
        return ordered.withColumn(PART, F.row_number().over(window) - 1).drop(_ORDER)

    def refused(self, rows: DataFrame, made_of: Callable[[DataFrame], DataFrame], exc: Exception) -> dict[str, str]:
        """The messages for which the transformation fails, by ``key_of``, with the reason of each.

        They are found by halving the batch, which takes a job of Spark for each half.

        :param made_of: applies the transformation to some of the rows
        :param exc: the error for all of them
        :raises PipelineFailed: there are more than ``MOST_REFUSED``
        """
        from pyspark.sql import functions as F

        hashed = F.xxhash64(key_of())
        hashes = sorted(rows.select(hashed.alias("hash")).toArrow()["hash"].to_pylist())
        found: dict[str, str] = {}
        failing = deque([(0, len(hashes), exc)])
        while failing:
            if len(found) + len(failing) > MOST_REFUSED:
                raise PipelineFailed(
                    f"{self._name} must be wrong: it fails for more than {MOST_REFUSED} messages of a batch, one time "
                    f"because of this: {first_line(exc)}. Nothing of the batch was written"
                )
            start, end, error = failing.popleft()
            if hashes[start] == hashes[end - 1]:
                keys = rows.where(hashed == hashes[start]).select(key_of().alias("key")).distinct().collect()
                found |= {row["key"]: f"{self._name} fails: {_condition(error)}" for row in keys}
                continue
            middle = (start + end) // 2
            while middle < end and hashes[middle] == hashes[middle - 1]:
                middle += 1
            for first, last in ((start, middle), (middle, end)):
                if first == last:
                    continue
                half = rows.where(hashed.between(hashes[first], hashes[last - 1]))
                try:
                    # Not a count, which would leave out what does not change it.
                    made_of(half).write.format("noop").mode("append").save()
                except Exception as raised:
                    if not is_of_data(raised):
                        raise
                    failing.append((first, last, raised))
        return found

    def _copy_of(self, spark: SparkSession) -> SparkSession:
        # Our view must not replace one of the user's.
        if self._session is None:
            classic: Any = spark
            self._session = type(spark)(spark.sparkContext, classic._jsparkSession.cloneSession())
            paths.settle(self._session)
        return self._session

    def _plan_of(self, messages: DataFrame, session: SparkSession) -> Any:
        """Spark's plan of the transformation; raises InvalidOption if it makes none."""
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame

        context: Any = session.sparkContext
        classic: Any = session
        plan: Any = messages
        view = DataFrame(
            context._jvm.org.apache.spark.sql.classic.Dataset.ofRows(
                classic._jsparkSession, plan._jdf.queryExecution().analyzed()
            ),
            session,
        )
        try:
            if self._function is None:
                view.createOrReplaceTempView(VIEW)
                out: Any = session.sql(self._text)
            else:
                out = self._function(view)
        except PySparkException as exc:
            raise self._wrong(first_line(exc)) from exc
        except Exception as exc:
            if self._function is None:
                raise
            raise self._wrong(f"it failed: {type(exc).__name__}: {exc}".partition("\n")[0]) from exc
        if not isinstance(out, DataFrame):
            raise self._wrong(f"it must return a DataFrame, not {type(out).__name__}")
        return out._jdf.queryExecution().analyzed()

    def _wrong(self, reason: str) -> InvalidOption:
        return InvalidOption(self._name, self._text, reason)


class _Chain:
    """A plan that works on each message alone; its result has the column of the message.

    :param wrong: makes the error
    """

    def __init__(self, session: SparkSession, plan: Any, wrong: Callable[[str], InvalidOption]) -> None:
        context: Any = session.sparkContext
        classic: Any = session
        self._jvm = context._jvm
        self._wrong = wrong
        #: Whether a message can become several rows.
        self.multiplies = False
        carried, message = self._carried(plan)
        names = [each.name() for each in _items(plan.output()) if not each.exprId().equals(message.exprId())]
        for name, times in Counter(map(str.lower, names)).items():
            if times > 1:
                raise wrong(f"it has {times} columns {name}: give them different names by AS")
            if name == MESSAGE:
                raise wrong(f"a column is called {MESSAGE}, as that of the message is: give it another name by AS")
        if not names:
            raise wrong("it has no columns")
        #: The columns that it chooses.
        self.columns: list[str] = names
        self.dataset = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(classic._jsparkSession, carried)

    def _carried(self, plan: Any) -> tuple[Any, Any]:
        """The plan with the column of the message, and that column."""
        name = plan.nodeName()
        if name == "SubqueryAlias" and plan.identifier().name() == _OURS:
            [message] = [each for each in _items(plan.output()) if each.name() == MESSAGE]
            return plan, message
        children = _items(plan.children())
        if name not in _CHAIN and children:
            meaning = _MEANINGS.get(name, f"has an operator {name}")
            raise self._wrong(
                f"it {meaning}, which would mean: within each batch alone. It may do what it would do to each message "
                f"alone; do the rest in a query of the table"
            )
        if len(children) != 1:
            raise self._wrong(
                f"it must read the messages, and nothing else: the view {VIEW}, or the function's argument"
            )
        for expression in _items(plan.expressions()):
            self._check(expression)
        self.multiplies = self.multiplies or name == "Generate"
        child, message = self._carried(children[0])
        if name != "Project":
            return plan.withNewChildren(self._jvm.PythonUtils.toSeq([child])), message
        chosen = _items(plan.projectList())
        if not any(_kind(each) == "AttributeReference" and each.exprId().equals(message.exprId()) for each in chosen):
            chosen = [*chosen, message]
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        return logical.Project(self._jvm.PythonUtils.toSeq(chosen), child), message

    def _check(self, expression: Any) -> None:
        kind = _kind(expression)
        if kind in _SUBQUERIES:
            raise self._wrong("it has a query within an expression, which would mean: of each batch alone")
        time = _TIMES.fullmatch(kind)
        if time:
            raise self._wrong(
                f"it calls {expression.prettyName()}(), so a repeated batch would give other rows: take "
                f"{MESSAGE}.seen_at, the time when the batch began"
            )
        children = _items(expression.children())
        if not expression.deterministic() and all(each.deterministic() for each in children):
            raise self._wrong(f"it calls {expression.prettyName()}(), so a repeated batch would give other rows")
        for child in children:
            self._check(child)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _unwritable(kind: DataType) -> str:
    """The name of a type that a table cannot have, if it is one or has one in it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        parts: list[DataType] = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    else:
        name = kind.simpleString()
        return name if name.startswith("interval") or re.match(rf"({'|'.join(_NO_COLUMNS)})\b(?!stamp)", name) else ""
    return next(filter(None, map(_unwritable, parts)), "")


def first_line(exc: BaseException) -> str:
    """Spark's own sentence, without its codes."""
    line = str(exc).strip().partition("\n")[0]
    return re.sub(r"^\[[A-Z_0-9.]+\] ?|\s*SQLSTATE: \w+.*$", "", line).rstrip(". ")


def key_of() -> Column:
    """What identifies a message, as one text."""
    from pyspark.sql import functions as F

    return F.concat_ws("/", "nsqd_address", "topic", "id")


def is_of_data(exc: Exception) -> bool:
    """Whether an error of Spark is one of the rows: repeated, it would come again."""
    from pyspark.errors import PythonException

    text = str(exc)
    if isinstance(exc, PythonException):
        # Not those of our own source, and not those of the machine.
        return re.search(r"gnsq_like[\w.]*: |^(OS|Memory|IO|Permission)\w*Error", text, re.MULTILINE) is None
    return _OF_DATA.search(text) is not None


def _condition(exc: Exception) -> str:
    """The kind of an error of data, without the data."""
    named = re.findall(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception))\b", str(exc), re.MULTILINE)
    found = re.search(r"\[([A-Z_]+)[A-Z_.]*\]", str(exc))
    if "Traceback (most recent call last)" in str(exc) and named:
        return str(named[-1])
    return found[1].replace("_", " ").lower() if found else type(exc).__name__
