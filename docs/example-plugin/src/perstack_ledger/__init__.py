"""Tools of a ledger, for Experts."""
