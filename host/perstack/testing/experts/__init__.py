"""Tests of Experts: run the tests in definition files, each Job in its own folder and storage."""
