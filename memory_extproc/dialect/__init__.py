"""JSON and SSE formats of the LLM APIs. Pure functions; edits are byte spans and leave all other bytes unchanged.

`registry` lists the dialects and model profiles. A dialect (`openai_chat`, `openai_responses`,
`anthropic_messages`) implements `base`, which also reads responses;
`json_spans` parses bodies, `messages` edits them."""
