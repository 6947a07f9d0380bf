import re
import subprocess
import sys
from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.data.loaders import LOADERS, open_dataset


@pytest.mark.parametrize("name", ["no-such-corpus", "some/where/else", "file.txt", ""])
def test_a_name_that_means_nothing_is_told_every_form_there_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError) as caught:
        open_dataset(name)

    assert all(loader.summary in str(caught.value) for loader in LOADERS)


def test_a_misspelt_builtin_name_is_recognised() -> None:
    with pytest.raises(UserError, match=r"no data set 'pydoc'\. Did you mean pydocs\?"):
        open_dataset("pydoc")
    with pytest.raises(UserError, match=r"no corpus 'pydocs:stdlb'\. Did you mean pydocs:stdlib\?"):
        open_dataset("pydocs:stdlb")


def test_a_misspelt_path_is_answered_with_its_neighbour(beir: Path) -> None:
    wrong = str(beir.with_name("tinny"))

    with pytest.raises(UserError, match=f"no data set .*{re.escape(f'Did you mean {beir}?')}"):
        open_dataset(wrong)


def test_a_folder_of_no_known_layout_is_told_what_was_looked_for(write) -> None:
    folder = write("odd/queries.dev.small.tsv", "1\ttext").parent

    with pytest.raises(UserError, match=r"odd holds none of the files looked for: corpus\.jsonl, "):
        open_dataset(str(folder))


def test_a_file_of_no_known_kind_is_refused(write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The file .*a\.xml is not of a kind that m2dr reads"):
        open_dataset(str(write("a.xml", "x,y")))
    with pytest.raises(
        UserError, match=r"a\.json is JSON. Write one record per line, as .*a\.jsonl"
    ):
        open_dataset(str(write("a.json", "[]")))
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match=r"The file .*a\.txt is empty\. A data set is"):
        open_dataset(str(tmp_path / "a.txt"))


def test_a_table_with_semicolons_is_told_its_separator(write) -> None:
    with pytest.raises(UserError, match="its keys are 'id;text'. Separate the columns by commas"):
        open_dataset(str(write("a.csv", "id;text", "1;x")))


def test_a_table_of_texts_without_ids_is_told_to_add_them(write) -> None:
    with pytest.raises(UserError, match="its keys are 'title', 'text'. Add an 'id' to each row"):
        open_dataset(str(write("a.csv", "title,text", "a,b")))


def test_a_folder_of_beir_is_not_taken_for_training_groups(beir: Path, write) -> None:
    write("tiny/train.jsonl", {"query": "a", "positives": ["b"]})

    assert open_dataset(str(beir)).document_count == 4


def test_the_table_of_loaders_is_read_without_any_heavy_library() -> None:
    code = (
        "import sys, m2dr.data.loaders\n"
        "sys.exit(str({'torch', 'transformers', 'ir_datasets'} & sys.modules.keys() or ''))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.strip() == ""
