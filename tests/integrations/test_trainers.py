# SPDX-License-Identifier: Apache-2.0
# The real libraries, on models made from a configuration: nothing is downloaded. `make integrations` installs them.
import copy

import pytest
import torch

import ldpkernels
from ldpkernels import aggregate, expected, load, report
from ldpkernels.accounting import Ledger
from ldpkernels.trainers import Upload, huggingface, lightning, trainable
from tests.conftest import EPS, KEY
from tests.integrations.pages import blocks

pytestmark = pytest.mark.filterwarnings("ignore")
C, R = 0.0, 0.1
WIDTH, CLASSES, LAYERS = 16, 3, 2


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)


def classifier():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def adapted():
    """LoRA on the queries of two layers: an A and a B each; the classifier's head stays frozen."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["query"], lora_alpha=8)
    return peft.get_peft_model(classifier(), config)


def examples(n=12):
    drawn = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, 50, (8,), generator=drawn), "labels": torch.tensor(i % CLASSES)}
        for i in range(n)
    ]


def huggingface_trainer(model, folder):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    settings = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        use_cpu=True, learning_rate=0.01, disable_tqdm=True,
    )  # fmt: skip
    return transformers.Trainer(model=model, args=settings, train_dataset=examples())


def trained_by_huggingface(model, upload, folder):
    trainer = huggingface_trainer(model, folder)
    trainer.add_callback(huggingface(upload))
    trainer.train()


def state(model):
    return {name: p.detach().clone() for name, p in trainable(model).items()}


def update(model, before):
    return {name: p.detach() - before[name] for name, p in trainable(model).items()}


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
def test_what_the_trainer_of_hugging_face_trained_is_reported(tmp_path, mechanism):
    model, server = classifier(), classifier()
    before, upload = state(model), Upload(C, R, EPS, mechanism=mechanism, generator=KEY)
    trained_by_huggingface(model, upload, tmp_path)
    changed = update(model, before)
    assert any(change.any() for change in changed.values())
    wanted = report(changed, C, R, EPS, mechanism=mechanism, generator=KEY)
    assert upload.report.to_bytes() == wanted.to_bytes()
    mean = aggregate([upload.report.to_bytes()], expected(trainable(server), C, R, EPS, mechanism=mechanism))
    held = state(server)
    load(trainable(server), mean, add=True)
    assert all(torch.equal(p, (held[n].double() + mean[n].double()).float()) for n, p in trainable(server).items())


def test_of_a_lora_model_the_adapters_leave(tmp_path):
    model = adapted()
    assert len(trainable(model)) == 2 * LAYERS < len(list(model.parameters()))
    upload = Upload(C, R, EPS)
    trained_by_huggingface(model, upload, tmp_path)
    names = upload.report.layout.names
    assert len(names) == 4
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert upload.report.nbytes == 4 * 4 * WIDTH // 8
    server, other = adapted(), adapted()
    mean = aggregate([upload.report, upload.report], expected(trainable(server), C, R, EPS))
    load(trainable(server), mean)
    for (name, p), (_, q) in zip(server.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, mean[name] if p.requires_grad else q)
    with pytest.raises(ValueError, match="no average of"):
        load(server, mean)  # the frozen ones have none


def test_a_module_is_reported_whole_with_what_is_frozen():
    """As it always was: who leaves parameters out says so."""
    model = adapted()
    assert len(report(model, C, R, EPS, buffers="keep").layout.names) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        trainable(model.requires_grad_(False))


def test_what_lightning_trained_is_reported():
    module, data, options = lightning_module()
    upload, before = Upload(C, R, EPS, generator=KEY), state(module)
    package = pytest.importorskip("lightning")
    package.Trainer(callbacks=[lightning(upload)], **options).fit(module, data)
    assert upload.report.layout.names == ("net.1.weight", "net.1.bias")
    assert upload.report.to_bytes() == report(update(module, before), C, R, EPS, generator=KEY).to_bytes()


def lightning_module():
    package = pytest.importorskip("lightning")

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 3).requires_grad_(False), torch.nn.Linear(3, 2))

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.net(batch), torch.zeros(len(batch), dtype=torch.long))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.randn(12, 4, generator=torch.Generator().manual_seed(2)), batch_size=4)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Module(), data, {"max_epochs": 1, "accelerator": "cpu", "logger": False, **quiet}


def test_what_accelerate_trained_is_reported():
    package = pytest.importorskip("accelerate")
    accelerator = package.Accelerator(cpu=True)
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    before, upload = state(plain), Upload(C, R, EPS, generator=KEY)
    upload.start(model)
    accelerator.backward(model(torch.ones(5, 4)).square().sum())
    optimizer.step()
    assert upload.finish(model, first=accelerator.is_main_process).nbytes == 5
    assert upload.report.layout.names == tuple(dict(plain.named_parameters()))
    assert upload.report.to_bytes() == report(update(plain, before), C, R, EPS, generator=KEY).to_bytes()


@pytest.mark.parametrize(
    ("ranges", "message"),
    [({"R": -1.0}, "R=-1.0"), ({"R": {"bias": 1.0}}, "R names no range"), ({"C": 1e39, "R": 1.0}, "exceeds float32")],
)
def test_what_no_report_can_have_is_refused_before_the_ledger(ranges, message, tmp_path):
    model = torch.nn.Linear(3, 2)
    options = {"eps": 1.0, "ledger": tmp_path / "spent", "budget": 100.0}
    with pytest.raises((ValueError, OverflowError), match=message):
        Upload(**ranges, **options).start(model)
    with Ledger(tmp_path / "spent", epsilon=100.0) as ledger:
        assert ledger.epsilon == 0
    Upload(R=1.0, **options).start(model)
    with Ledger(tmp_path / "spent", epsilon=100.0) as ledger:
        assert ledger.epsilon > 0


def test_an_upload_is_of_one_training():
    model, upload = torch.nn.Linear(3, 2), Upload(C, R, EPS)
    with pytest.raises(RuntimeError, match="finish was called before start"):
        upload.finish(model)
    upload.start(model)
    assert upload.finish(model, first=False) is None
    assert upload.report is None
    with pytest.raises(RuntimeError, match="failed was called before start"):
        upload.failed()
    for wrong in ({"eps": 0.0}, {"mechanism": "gaussian"}, {"sent": "gradients"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Upload(**{"C": C, "R": R, "eps": EPS, **wrong})


@pytest.mark.parametrize("sent", ["update", "weights"])
def test_a_training_that_failed_is_a_report_of_no_change(sent, caplog):
    model, upload = torch.nn.Linear(3, 2), Upload(C, 1.0, EPS, generator=KEY, sent=sent)
    unchanged = {n: p.detach().clone() if sent == "weights" else torch.zeros_like(p) for n, p in state(model).items()}
    expected = report(unchanged, C, 1.0, EPS, generator=KEY).to_bytes()
    upload.start(model)
    model.weight.data.add_(0.5)
    assert upload.failed().to_bytes() == expected
    upload.start(model)
    unchanged = state(model) if sent == "weights" else unchanged
    expected = report(unchanged, C, 1.0, EPS, generator=KEY).to_bytes()
    model.bias.requires_grad_(False)
    assert upload.finish(model).to_bytes() == expected
    assert "froze, unfroze or replaced" in caplog.text
    upload.start(model.requires_grad_(True))
    expected = upload.failed().to_bytes()
    for change in (torch.nn.Linear.double, lambda m: m.to("meta"), lambda m: m.to(torch.complex64)):
        upload.start(model)
        assert upload.finish(change(copy.deepcopy(model))).to_bytes() == expected


def test_weights_instead_of_updates_and_small_formats():
    model = torch.nn.Linear(3, 2).bfloat16()
    upload = Upload(C, 1.0, EPS, generator=KEY, sent="weights")
    upload.start(model)
    upload.finish(model)
    assert torch.equal(upload.report.payload, report(model, C, 1.0, EPS, generator=KEY).payload)
    upload = Upload(C, 1.0, EPS, generator=KEY)
    upload.start(model)
    before = model.weight.detach().clone()
    model.weight.data.add_(0.5)
    upload.finish(model)
    change = {"weight": model.weight.detach().float() - before.float(), "bias": torch.zeros(2)}
    assert torch.equal(upload.report.payload, ldpkernels.report(change, C, 1.0, EPS, generator=KEY).payload)


def test_the_page_is_true(tmp_path):
    """Block by block, each where its tool is installed; the first two are one round."""
    round_, server, lora, lightnings, loop = blocks("trainers.md")
    names = {"trainer": huggingface_trainer(classifier(), tmp_path), "server": classifier()}
    exec(round_, names)
    before = state(names["server"])
    exec(server, names)
    assert any(not torch.equal(p, before[name]) for name, p in names["server"].named_parameters())
    pytest.importorskip("peft")
    names |= {"base": classifier()}
    exec(lora, names)
    assert len(names["trainable"](names["server"])) == 2 * LAYERS
    module, data, options = lightning_module()
    names = {"module": module, "batches": data, "options": options}
    exec(lightnings, names)
    assert names["data"].startswith(b"LDPK")

    def train(accelerator, model, optimizer):
        accelerator.backward(model(torch.ones(5, 4)).square().sum())
        optimizer.step()

    model = torch.nn.Linear(4, 2)
    names = {"settings": {"cpu": True}, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    names["train"] = train
    exec(loop, names)
    assert names["upload"].report.nbytes == 2
