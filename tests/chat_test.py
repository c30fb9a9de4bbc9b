"""`grace run --chat`: a conversation is put to the model as its folder's template says (arguments: program, source folder)."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
DEMO = SOURCE / "models/demo"
TEMPLATE = (
    "{% for m in messages %}{{ '\n' ~ m.role ~ ': ' ~ m.content }}{% endfor %}{% if tools %}{{ ' [' ~ tools | map(attribute='name') | join(',') ~ ']' }}{% endif %}"
    "{% if style is defined %}{{ ' (' ~ style ~ ')' }}{% endif %}{% if add_generation_prompt %}{{ '\nassistant:' }}{% endif %}")


def grace(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600)


class AChat(unittest.TestCase):
    """The demo model with a template of ours beside it."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.model = cls.folder / "model"
        cls.model.mkdir()
        for file in DEMO.iterdir():
            if file.is_file():
                (cls.model / file.name).symlink_to(file.resolve())
        (cls.model / "chat_template.jinja").write_text(TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def written(self, name: str, content) -> pathlib.Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def outputs(self, *arguments, model=None) -> list:
        done = grace("run", model or self.model, "--max-new-tokens", 8, "--ignore-eos", "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return json.loads(done.stdout)["outputs"]

    def is_put_as(self, text: str, *arguments):
        self.assertEqual(self.outputs("--chat", *arguments), self.outputs("--prompt", text))

    def refuses(self, *arguments, saying: str):
        done = grace("run", *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), (arguments, done.stderr))
        self.assertRegex(done.stderr, r"\Agrace: [^\n]*\n\Z")
        self.assertIn(saying, done.stderr)

    def test_puts_a_prompt_as_a_message(self):
        self.is_put_as("\nuser: Hello\nassistant:", "--prompt", "Hello")
        self.is_put_as("\nsystem: Be brief.\nuser: Hello\nassistant:", "--prompt", "Hello", "--system", "Be brief.")

    def test_takes_each_prompt_for_a_conversation(self):
        prompts = self.written("prompts.jsonl", '"Hello"\n{"text": "Bye"}\n')
        by_file = self.outputs("--chat", "--prompts", prompts)
        self.assertEqual(by_file, self.outputs("--chat", "--prompt", "Hello", "--prompt", "Bye"))
        self.assertEqual(by_file, self.outputs("--prompt", "\nuser: Hello\nassistant:", "--prompt", "\nuser: Bye\nassistant:"))

    def test_takes_a_conversation_from_a_file(self):
        messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi", "tool_calls": None}, {"role": "user", "content": "Bye"}]
        text = "\nuser: Hello\nassistant: Hi\nuser: Bye"
        self.is_put_as(text + "\nassistant:", "--messages", self.written("messages.json", messages))
        with_tools = {"messages": messages, "tools": [{"name": "f"}, {"name": "g"}]}
        self.is_put_as(text + " [f,g]\nassistant:", "--messages", self.written("tools.json", with_tools))

    def test_hands_variables_to_the_template(self):
        self.is_put_as("\nuser: Hello (False)\nassistant:", "--prompt", "Hello", "--chat-variable", "style=false")
        self.is_put_as("\nuser: Hello (in verse)\nassistant:", "--prompt", "Hello", "--chat-variable", "style=in verse")

    def test_prints_the_reply_alone(self):
        arguments = ("run", self.model, "--chat", "--prompt", "Hello", "--max-new-tokens", 8)
        text = json.loads(grace(*arguments, "--json").stdout)["outputs"][0]["text"]
        self.assertEqual(grace(*arguments).stdout, text + "\n")

    def talked(self, said: str, *arguments) -> str:
        done = subprocess.run([PROGRAM, "run", self.model, "--chat", "--max-new-tokens", "8", "--ignore-eos", *map(str, arguments)], input=said, capture_output=True,
                              text=True, timeout=600)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_answers_message_after_message(self):
        first = self.outputs("--chat", "--prompt", "Hello")[0]["text"]
        messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first}, {"role": "user", "content": "Bye"}]
        second = self.outputs("--chat", "--messages", self.written("turns.json", messages))[0]["text"]
        ways = [("--cluster", "1x1"), ("--cluster", "2x2")] + ([("--cluster", "2x1", "--transport", "mpi")] if shutil.which("mpirun") else [])
        for way in ways:
            self.assertEqual(self.talked("Hello\n\nBye\n/new\nHello", *way), f"{first}\n{second}\n{first}\n", way)
        self.assertEqual(self.talked(""), "")
        system = self.outputs("--chat", "--prompt", "Hello", "--system", "Be brief.")[0]["text"]
        self.assertEqual(self.talked("Hello\n/new\nHello\n", "--system", "Be brief."), f"{system}\n{system}\n")

    def test_says_what_a_chat_in_turns_cannot(self):
        self.refuses(self.model, "--chat", "--json", saying="--json with --chat needs a prompt")
        self.refuses(DEMO, "--chat", saying="no chat template")
        done = subprocess.run([PROGRAM, "run", self.model, "--chat"], input="long " * 4000, capture_output=True, text=True, timeout=600)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Agrace: \d+ tokens and 64 new ones are more than the model's \d+ positions\n\Z")

    def test_is_the_same_text_on_four_ranks(self):
        self.assertEqual(self.outputs("--chat", "--prompt", "Hello", "--cluster", "2x2"), self.outputs("--chat", "--prompt", "Hello"))

    def test_refuses_a_model_without_a_template(self):
        self.refuses(DEMO, "--chat", "--prompt", "Hello", saying="models/demo: no chat template")

    def test_refuses_flags_that_contradict_one_another(self):
        messages = self.written("one.json", [{"role": "user", "content": "x"}])
        self.refuses(self.model, "--chat", "--prompt", "x", "--messages", messages, saying="give one of")
        self.refuses(self.model, "--chat", "--token-ids", messages, saying="give one of")
        self.refuses(self.model, "--chat", "--messages", messages, "--system", "x", saying="--system or --messages")
        self.refuses(self.model, "--prompt", "x", "--system", "y", saying="--system goes with --chat")
        self.refuses(self.model, "--messages", messages, saying="--messages goes with --chat")
        self.refuses(self.model, "--prompt", "x", "--chat-variable", "a=1", saying="--chat-variable goes with --chat")
        self.refuses(self.model, "--chat", "--prompt", "x", "--chat-variable", "a", saying="`a` is not NAME=VALUE")

    def test_says_what_is_wrong_with_a_conversation(self):
        self.refuses(self.model, "--chat", "--messages", self.written("empty.json", []), saying="empty.json: no list of messages")
        self.refuses(self.model, "--chat", "--messages", self.written("bare.json", [{"content": "x"}]), saying="bare.json: message 0")
        self.refuses(self.model, "--chat", "--messages", self.written("odd.json", {"messages": [{"role": "user"}], "tools": 3}), saying="odd.json: tools: 3")

    def test_says_what_a_template_does_not_know(self):
        other = self.folder / "other"
        shutil.copytree(self.model, other, symlinks=True)
        (other / "chat_template.jinja").write_text("{{ messages[0].content }}\n{{ 'x' | wordwrap }}")
        done = grace("run", other, "--chat", "--prompt", "Hello")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("chat_template.jinja:2: filter `wordwrap`", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
