"""Measurements: the store of this machine, and databases as text to commit and review."""

from __future__ import annotations

from aot_tune.database.files import database_path, load_database, load_databases, save_database
from aot_tune.database.format import decode, encode
from aot_tune.database.identity import operator_digest
from aot_tune.database.match import deciding, is_of, match_measurements, missing_problems, nearest_databases, told_ties
from aot_tune.database.measurement_store import Begun, MeasurementStore, OperatorStore, begin, compact_store, forget
from aot_tune.database.merge import measured_before, update, without
from aot_tune.database.records import CandidateRecord, OperatorDatabase, SurveyedShape, canonical_database

__all__ = [
    "Begun",
    "CandidateRecord",
    "MeasurementStore",
    "OperatorDatabase",
    "OperatorStore",
    "SurveyedShape",
    "begin",
    "canonical_database",
    "compact_store",
    "database_path",
    "deciding",
    "decode",
    "encode",
    "forget",
    "is_of",
    "load_database",
    "load_databases",
    "match_measurements",
    "measured_before",
    "missing_problems",
    "nearest_databases",
    "operator_digest",
    "save_database",
    "told_ties",
    "update",
    "without",
]
