"""The JSON and SSE of LLM APIs. Pure. Edits are byte spans: every other byte stays the client's.

`registry` names the dialects and the models. A dialect (`openai_chat`, `openai_responses`, `anthropic_messages`)
implements `base`; `json_spans` reads bodies, `messages` and `memory_fields` edit them, `answer_reader` reads what
comes back.
"""
