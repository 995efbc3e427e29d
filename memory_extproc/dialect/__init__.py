"""JSON and SSE formats of the LLM APIs. Pure functions; edits are byte spans and leave all other bytes unchanged.

`registry` lists the dialects and model profiles. A dialect (`openai_chat`, `openai_responses`,
`anthropic_messages`) implements `base`; `json_spans` parses bodies, `messages` edits them,
`answer_reader` reads responses."""
