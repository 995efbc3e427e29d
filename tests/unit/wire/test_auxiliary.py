from __future__ import annotations

import pytest

from memory_extproc.wire.auxiliary import auxiliary

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
