"""The corpus: which files, how they are split and encoded."""

from pearl_pp import builtin
from pearl_pp.builtin import corpus


def _write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_files_are_chosen_and_split_by_path(tmp_path):
    text = "\tx = 1\n" * 60
    for name in ("copy.py", "ast.py", "tomllib/_re.py", "tomllib/_types.py", "notes.txt"):
        _write(tmp_path, name, text)
    for name in ("test/ast.py", "lib2to3/tests/ast.py", "site-packages/x/y.py", "_sysconfigdata_x.py"):
        _write(tmp_path, name, text)
    _write(tmp_path, "short.py", "x = 1\n")

    assert corpus.list_files(tmp_path) == [
        "ast.py",
        "copy.py",
        "short.py",
        "tomllib/_re.py",
        "tomllib/_types.py",
    ]
    found = corpus.collect(tmp_path)
    assert len(found.train) == 2
    assert len(found.held_out) == 2
    assert found.train[0] == "    x = 1\n" * 60


def test_the_held_out_files_are_those_of_the_model_card():
    held_out = [
        "_strptime",
        "_threading_local",
        "copy",
        "distutils/command/bdist_rpm",
        "distutils/command/build_scripts",
        "distutils/sysconfig",
        "email/mime/nonmultipart",
        "idlelib/filelist",
        "idlelib/help",
        "idlelib/iomenu",
        "idlelib/percolator",
        "lib2to3/fixes/fix_buffer",
        "multiprocessing/popen_spawn_posix",
        "multiprocessing/reduction",
        "platform",
        "tomllib/_re",
        "turtledemo/colormixer",
        "xml/dom/minicompat",
    ]
    assert all(corpus.is_held_out(f"{name}.py") for name in held_out)
    trained_on = ("ast", "typing", "json/decoder", "asyncio/base_events", "email/message", "idlelib/editor")
    assert not any(corpus.is_held_out(f"{name}.py") for name in trained_on)


def test_prompts_come_from_the_held_out_files_that_the_card_names():
    card = (builtin.TARGET_DIR.parent / "MODEL_CARD.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith("| ") and ".py |" in line]
    assert len(rows) == len(builtin.prompts()) == 8
    assert all(corpus.is_held_out(row[0].removeprefix("| ")) for row in rows)


def test_the_stream_is_beginning_text_end_file_after_file():
    texts = ["def f(x):\n    return x\n" * 20, "été → fin"]
    tokenizer = corpus.train_tokenizer(texts, 300)
    ids = corpus.encode(tokenizer, texts).tolist()
    middle = ids.index(corpus.EOS_ID)
    assert ids[0] == ids[middle + 1] == corpus.BOS_ID
    assert ids[-1] == corpus.EOS_ID
    assert tokenizer.decode(ids[1:middle]) == texts[0]
    assert tokenizer.decode(ids[middle + 2 : -1]) == texts[1]  # characters it has not seen are bytes
