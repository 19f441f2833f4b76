# SPDX-License-Identifier: Apache-2.0
"""The server: rounds of reports, and an evaluation on pictures of its own."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from ldp_digits import EPS, task
from ldpkernels.flower import LdpFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, and say what was learnt."""
    config = context.run_config
    nodes = int(config["nodes"])
    strategy = LdpFedAvg(
        EPS,
        R=0.2,
        ranges="noise-subtracted",
        growth=1.5,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        save=config["save"] or None,
        resume=bool(config["save"]),
    )
    result = strategy.start(
        grid,
        ArrayRecord(task.network(int(config["seed"])).state_dict()),
        num_rounds=int(config["rounds"]),
        evaluate_fn=evaluate,
    )
    for number, metrics in result.train_metrics_clientapp.items():
        print(f"round {number}:", *(f"{name}={value:,.6g}" for name, value in metrics.items()), flush=True)
    last = max(result.evaluate_metrics_serverapp)
    print(f"accuracy after {last} rounds: {result.evaluate_metrics_serverapp[last]['accuracy']:.1%}", flush=True)


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """On the server's own pictures: what clients say of theirs would be private."""
    model = task.network()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": task.accuracy(model)})
