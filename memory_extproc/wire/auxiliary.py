"""Calls that a chat client makes for itself: titles, tags, summaries, follow-ups. Nobody says anything in
them, so nothing is remembered from them and no memory belongs into them.

They are known by how their prompts begin, word for word as the clients send them. A prompt that a person could
have written is not in the list: a title too many costs a row, a person's words lost cost trust.
"""

from __future__ import annotations

import re

_LOOKED_AT = 600  # characters of a prompt's beginning; every pattern is anchored there
_LOOKED_AT_OF_SYSTEM = 2_000

# What the caller's last message begins with, by client. Case and white space do not count.
_ASKED = (
    # Open WebUI, config.py DEFAULT_*_PROMPT_TEMPLATE. Its retrieval template also begins with "### Task:", but
    # goes on "Respond to the user query" and carries the caller's own words: it must not match.
    r"#+ task: (?:generate|create) (?:a concise, )?\d(?:-\d)?[ -]word",
    r"#+ task: generate (?:a concise|an? [\w-]+ title|(?:\d(?:-\d)? )?broad tags)",
    r"#+ task: generate a detailed prompt for am? image",
    r"#+ task: suggest \d(?:-\d)? (?:relevant )?follow-up",
    r"#+ task: analyze the chat history to determine the necessity",
    r"#+ task: based on the chat history, determine whether a search",
    r"#+ task: you are an? (?:autocompletion system|title generator)",
    r"your task is to reflect the speaker's likely facial expression through a fitting emoji",
    r"create a concise, 3-5 word (?:title|phrase) (?:with an emoji )?as (?:a )?(?:title|header) for the",
    # LibreChat, api/app/clients and @librechat/agents
    r"(?:please generate|provide) a concise, 5-word-or-less title for the conversation",
    r"detect user language and write in the same language an extremely concise title",
    r"analyze this conversation and provide: 1\. the detected language of the conversation",
    r"summarize the conversation by integrating new lines into the current summary",
    # NextChat and its forks, locales/en.ts Store.Prompt
    r"please generate a four to five word title summarizing our conversation",
    r"summarize (?:our|the) discussion briefly in 200 words or less to use as a prompt for future context",
    r"使用四到五个字直接返回这句话的简要主题",
    r"简要总结一下对话内容, ?用作后续的上下文提示 ?prompt",
    # IDEs and their wrappers
    r"generate a concise 3-7 word title for this conversation, omitting punctuation",  # Zed
    r"please (?:write|reply with) a (?:5-10 word title for the following|title for the chat that is 3-4 words)",
    r"given the following\.{3} please reply with a title for the chat that is 3-4 words",  # Continue
    r"please write a brief title for the following request:",  # Copilot Chat
    r"<task> ?generate a (?:short|concise) (?:conversation )?title",
    r"generate a title for this conversation:",  # opencode
)

# What the system message of such a call begins with, or a line of it.
_SYSTEM = (
    r"you are a summarization ai\. you'll never answer a user's question directly",  # HuggingFace chat-ui
    r"you are a title generator\. you output only a thread title",  # opencode
    r"you are an expert in crafting (?:pithy|ultra-compact) titles for chatbot conversations",  # Copilot
    r"you(?: a|')re a professional conversation summarizer\. generate a concise title",  # LobeChat
    r"你是一名擅长会话的助理, ?你需要将用户的会话总结为",  # LobeChat
    r"you are an assistant (?:who is )?skilled in conversation\. you need to summarize the user's conversation",
    r"analyze if this message indicates a new conversation topic",  # Claude Code
    r"summarize this coding conversation in under 50 characters",
    r"(?:- )?you will generate a short title based on the first message a user begins a conversation with",
)


def _beginnings(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_ASKED_BEGINS = _beginnings(*_ASKED)
# Some clients say in a system message what others have the caller ask.
_SYSTEM_BEGINS = _beginnings(*_ASKED, *_SYSTEM)
# A coding agent's own name stands in a block before: there, what it is about begins a line of its own.
_LINE_BEGINS = _beginnings(*_SYSTEM)
# Typographic quotes and full-width commas are put in by some clients' translations only.
_PLAIN = str.maketrans({"\u2019": "'", "\u201c": '"', "\u201d": '"', "\uff0c": ","})


def auxiliary(asked: str, system: str = "") -> bool:
    """Whether a request is a client's own call, by its last user message or its system message. Reads the
    beginning of each."""
    if _ASKED_BEGINS.match(_one_line(_folded(asked[:_LOOKED_AT]))):
        return True
    if not system:
        return False
    folded = _folded(system[:_LOOKED_AT_OF_SYSTEM])
    if _SYSTEM_BEGINS.match(_one_line(folded[:_LOOKED_AT])):
        return True
    return any(_LINE_BEGINS.match(_one_line(line)) for line in folded.splitlines())


def _folded(text: str) -> str:
    return (text if text.isascii() else text.translate(_PLAIN)).casefold()


def _one_line(text: str) -> str:
    return " ".join(text.split())
