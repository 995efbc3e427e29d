from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from memory_extproc.dialect.base import ChatRequest
from memory_extproc.dialect.registry import dialect_for
from memory_extproc.request.policy import auxiliary

CLIENT_CALLS = [
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Guidelines:",
    "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history, along with",
    "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next",
    "### Task:\nAnalyze the chat history to determine the necessity of generating search queries",
    "### Task:\nYou are an autocompletion system. Continue the text in `<text>` based on the **completion type**",
    "  ###  TASK:\r\n\r\nGenerate a concise, 3-5 word title",
    "Create a concise, 3-5 word title with an emoji as a title for the chat history",
    "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only return",
    "Please generate a concise, 5-word-or-less title for the conversation, using its same language",
    "Please generate a four to five word title summarizing our conversation without any lead-in, punctuation",
    "Summarize the discussion briefly in 200 words or less to use as a prompt for future context.",
    "简要总结一下对话内容，用作后续的上下文提示 prompt，控制在 200 字以内",
    "Generate a concise 3-7 word title for this conversation, omitting punctuation. Go straight to the title",
    "Generate a title for this conversation:\n",
]
PEOPLES_WORDS = [
    "",
    "Generate a title for my blog post about Hawaii",
    "Please summarize the conversation we had about the budget",
    "### Task:\nRespond to the user query using the provided context.\n<user_query>What is my budget?</user_query>",
    "### Task: plan my trip to Hawaii",
    "I was told: ### Task:\nGenerate a concise, 3-5 word title with an emoji",
    "What does 'Provide a concise, 5-word-or-less title for the conversation' mean?",
    "Suggest three follow-up questions for my interview",
]


@pytest.mark.parametrize("asked", CLIENT_CALLS)
def test_a_chat_clients_own_call_is_recognised_by_how_its_prompt_begins(asked: str) -> None:
    assert auxiliary(asked)


@pytest.mark.parametrize("asked", PEOPLES_WORDS)
def test_a_persons_words_are_never_taken_for_a_clients_own_call(asked: str) -> None:
    assert not auxiliary(asked)


def test_a_title_call_is_recognised_by_its_system_message_when_the_user_message_is_the_chat() -> None:
    chat = "My budget for the Hawaii trip is $10,000"
    assert auxiliary(chat, "You are a title generator. You output ONLY a thread title. Nothing else.")
    assert auxiliary(chat, "You\u2019re a professional conversation summarizer. Generate a concise title that")
    assert not auxiliary(chat, "You are a helpful travel agent.")


def test_a_megabyte_of_text_is_judged_by_its_beginning_alone() -> None:
    assert not auxiliary("x " * 500_000 + "Generate a title for this conversation:")


CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
SAID = "USER: My budget for the Hawaii trip is $10,000\nASSISTANT: Then Maui in May is within reach."

# Requests as clients send them for themselves; a person's chat stands somewhere in each.
CLIENT_REQUESTS = {
    "Open WebUI, title": (
        CHAT,
        {
            "model": "qwen3",
            "messages": [
                {
                    "role": "user",
                    "content": "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat "
                    f"history.\n### Guidelines:\n- The title should be clear\n### Chat History:\n{SAID}",
                }
            ],
            "stream": False,
        },
    ),
    "Open WebUI, tags": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {
                    "role": "user",
                    "content": "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat "
                    f"history, along with 1-3 more specific subtopic tags.\n\n### Chat History:\n{SAID}",
                },
            ]
        },
    ),
    "LibreChat, title as a system message and nobody's words": (
        CHAT,
        {
            "messages": [
                {
                    "role": "system",
                    "content": "Please generate a concise, 5-word-or-less title for the conversation, using its "
                    f"same language, with no punctuation.\n\n||>User:\n{SAID}",
                }
            ]
        },
    ),
    "LibreChat's agents, title": (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": "Analyze this conversation and provide:\n1. The detected language of the "
                    f"conversation\n2. A concise title in the detected language\n\n{SAID}",
                }
            ]
        },
    ),
    "HuggingFace chat-ui, title": (
        CHAT,
        {
            "messages": [
                {
                    "role": "system",
                    "content": "You are a summarization AI. You'll never answer a user's question directly, but "
                    "instead summarize the user's request into a single short sentence of four words or less.",
                },
                {"role": "user", "content": "My budget for the Hawaii trip is $10,000"},
            ]
        },
    ),
    "opencode, title, over the Responses API": (
        RESPONSES,
        {
            "instructions": "You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>",
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Generate a title for this conversation:"}],
                },
                {"role": "user", "content": [{"type": "input_text", "text": "My budget is $10,000"}]},
            ],
        },
    ),
    "opencode, title, as a developer message": (
        RESPONSES,
        {
            "input": [
                {"role": "developer", "content": "You are a title generator. You output ONLY a thread title."},
                {"role": "user", "content": "My budget is $10,000"},
            ]
        },
    ),
    "Claude Code, topic: its name comes first, in a block of its own": (
        MESSAGES,
        {
            "model": "claude-haiku",
            "max_tokens": 512,
            "system": [
                {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude."},
                {
                    "type": "text",
                    "text": "Analyze if this message indicates a new conversation topic. If it does, extract",
                    "cache_control": {"type": "ephemeral"},
                },
            ],
            "messages": [{"role": "user", "content": "My budget is $10,000"}],
        },
    ),
    "Copilot, title": (
        CHAT,
        {
            "messages": [
                {
                    "role": "system",
                    "content": [
                        {
                            "type": "text",
                            "text": "You are an expert in crafting pithy titles for chatbot conversations. You are "
                            "presented with a chat request, and you reply with a brief title.",
                        }
                    ],
                },
                {"role": "user", "content": "Please write a brief title for the following request:\n\nMy budget"},
            ]
        },
    ),
}
CHATS_WITH_A_SYSTEM = {
    "an assistant that is told about titles": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "You help authors. When asked, you generate a title for a text."},
                {"role": "user", "content": "My novel is about Hawaii"},
            ]
        },
    ),
    "a coding agent at work": (
        MESSAGES,
        {
            "system": [
                {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude."},
                {"type": "text", "text": "You are an interactive CLI tool that helps users.\n\n# Tone\n"},
            ],
            "messages": [{"role": "user", "content": "My deploy command is make release"}],
        },
    ),
    "instructions as items": (
        RESPONSES,
        {"instructions": [{"role": "system", "content": "You are a title generator."}], "input": "I live in Paris"},
    ),
}


def read(path: str, body: Mapping[str, object]) -> ChatRequest:
    dialect = dialect_for(path)
    assert dialect is not None
    return dialect.read(json.dumps(body).encode())


@pytest.mark.parametrize(("path", "body"), CLIENT_REQUESTS.values(), ids=CLIENT_REQUESTS)
def test_a_clients_own_request_is_recognised_as_it_is_sent(path: str, body: Mapping[str, object]) -> None:
    request = read(path, body)
    assert auxiliary(request.asked, request.system)


@pytest.mark.parametrize(("path", "body"), CHATS_WITH_A_SYSTEM.values(), ids=CHATS_WITH_A_SYSTEM)
def test_a_persons_chat_with_an_assistant_is_never_taken_for_one(path: str, body: Mapping[str, object]) -> None:
    request = read(path, body)
    assert not auxiliary(request.asked, request.system)
