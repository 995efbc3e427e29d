"""The write path after the wire: from a completed exchange to memories, at least once and in effect exactly
once.

Where to read, in the order in which a turn comes by:

- in: `intake` (`screening`, `incognito`, `quota`, `sessions`, `sifting`), and the journals, `journal*`, one
  port each way;
- in hand: `learner` over `lanes`, `gathering` and `take_up`, which say who is worked for when;
- step 1, what was said: `messages`, with `remember`, `pieces` and `quarantine`;
- step 2, facts: `finding` with an extractor (`rules_extractor`, `llm_extractor`), then `reconcile` by
  `verdicts` and `same`;
- told to: `obeying` and `commanded`, with `chat_commands`, `speaking` and `llm_commands`;
- beside it: `condensing` for long chats, `llm_reflector`, `llm_consolidator` and `notepad`, and `budget` for
  what models cost.
"""
