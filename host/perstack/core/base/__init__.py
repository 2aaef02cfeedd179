"""Foundations without knowledge of Jobs: records, ids, texts, hash chains, schemas, usage and secrets."""
