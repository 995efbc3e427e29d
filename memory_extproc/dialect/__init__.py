"""All that knows the JSON and the SSE of an LLM's API. Pure. Edits are byte spans: every other byte stays the
client's.

A dialect (`chat_completions`, `responses`, `anthropic`, each with its answers) fulfils `base`; `spans` and
`fields` read bodies, `placing`, `shortening` and `controls` edit them, `answers` and `sse` read what comes
back.
"""
