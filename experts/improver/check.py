"""Runs the cases of stack.py, and prints what an evaluator prints: one JSON object."""
# ruff: noqa: PT009, T201 - a program of its own: it has unittest, and prints

import json
import unittest

from stack import Stack


class Cases(unittest.TestCase):
    def setUp(self):
        self.stack = Stack()
        for number in (1, 2, 3):
            self.stack.push(number)

    def test_pop_gives_the_last(self):
        self.assertEqual(self.stack.pop(), 3)

    def test_pop_takes_it_away(self):
        self.stack.pop()
        self.assertEqual(self.stack.items, [1, 2])

    def test_peek_gives_the_last_and_leaves_it(self):
        self.assertEqual(self.stack.peek(), 3)
        self.assertEqual(self.stack.items, [1, 2, 3])

    def test_size_counts_all(self):
        self.assertEqual(self.stack.size(), 3)

    def test_an_empty_one_says_so(self):
        self.assertTrue(Stack().is_empty())
        self.assertFalse(self.stack.is_empty())


def main():
    result = unittest.TestResult()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Cases)
    names = [case.id().rpartition(".test_")[2] for case in suite]
    suite.run(result)
    wrong = {case.id().rpartition(".test_")[2]: words for case, words in [*result.failures, *result.errors]}
    analysis = [f"{name}: {words.strip().splitlines()[-1]}" for name, words in wrong.items()]
    print(
        json.dumps(
            {
                "metrics": {"passed": (len(names) - len(wrong)) / len(names)},
                "analysis": "\n".join(analysis),
                "cases": [{"name": name, "passed": name not in wrong} for name in names],
            }
        )
    )


if __name__ == "__main__":
    main()
