"""Jobs as sums of their Runs: totals, budgets, answers, resumption, summaries, choice, removal and costs."""
