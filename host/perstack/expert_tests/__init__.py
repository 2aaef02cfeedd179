"""Tests of Experts in definition files, `[[experts.NAME.tests]]`: a query, and what is expected of the Job.

`models` has the keys and is pure; `written_tests` reads the tests of a definition, selects and adds them.
`perstack.testing.experts` runs them, judges the Jobs, and makes them items of pytest.

Tests are not part of an Expert: the reader of definitions keeps their tables as written, so Runs do not read them
and logs do not contain them. Two things need them without a test being run: an agreement covers the programs of a test,
and messages about unknown keys name the tables of tests. For the second, `toml_reader.tables.SEPARATE_TABLES` asks
`models`.
"""
