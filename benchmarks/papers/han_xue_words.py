# SPDX-License-Identifier: Apache-2.0
"""What the page of benchmarks/papers/han_xue.py says beside its tables."""

INTRODUCTION = (
    "Ours beside the paper's. One run a row, unless seeds are named; ± is the deviation of one of them. Accuracies are "
    "of the real test examples. Table 1 has, of images, a GAN in every party, and DCGANs with wider networks; other "
    "generators, and the mixture of GANs and DCGANs that the paper describes, are below.\n\n"
    "**Sigma changes nothing.** The noise is a constant in the weights, and its gradient is zero "
    "([why](../../../docs/federated/han_xue.md)). The fall of the paper's accuracies with sigma is not the noise's "
    'doing, and its eps protects nothing. "True eps of the losses" is the guarantee of a release of the noisy losses, '
    "which nobody needs.\n\n"
    "**The sound variant.** Gradients of real examples are clipped to C = 1 and noised, on Poisson samples. With exact "
    "votes the samples are protected and the labels are not. With GNMax 1,000 samples are labelled with noise that "
    "costs as much again as the generators. A vote of five parties is at most five against none, so at this eps most "
    "labels are noise, and taking fewer samples with less noise each buys no more information: eps fixes queries / "
    "noise^2."
)
TABLE_3 = """\
| method, on MNIST | what the paper says of it | its accuracy there |
| --- | --- | ---: |
| DP-DSSGD | parties upload the tenth of their parameters, with noise; the global model is the average | 97.00% |
| SecureML | two servers train on the joint data under two-party computation | 93.10% |
| the paper's own | | 98.26% (98.28% in its tables 1 and 2) |

Neither was rerun: the figures are those of the two methods' own papers, and this one gives no setting to run them in.
Of DP-DSSGD it does not say how many parties there were, on which networks and for how many rounds, nor the eps of a
parameter; "their privacy loss can still be larger than our scheme" has no number. Of SecureML it does not say which
model reached 93.10%. What can be said of privacy: an eps of each of so many parameters adds up as LDP-FL's does
([LDP-FL](ldp-fl.md)), two-party computation protects the training and not its result, and the paper's own scheme
protects nothing (above)."""
FIGURES = """\
Above the paper's variant: marks and bars where it was run, at sigma = 1; lines beyond, as sigma changes no bit. Crosses
are the paper's, of five parties; those of 10 and 20 it has in a plot alone. Below the sound variant, three seeds a
mark: of images with 400 steps and 6,000 samples a party, and in full."""
SAMPLES_OR_LABELS = """\
What costs the global model its accuracy, the samples or their labels? The same global model, trained with either of
them replaced; a GAN in each of five parties, T = 10,000, all samples, three seeds. With real images in place of
generated ones, which the five models label by their vote (each has trained on a fifth of them), it ends at .8742: so
much the vote is worth, whatever the generators. The samples cost the rest: .040 with the GANs of these runs, .032
with those of the tables (.8422, five seeds; the same three seeds ended at .8416 there, on another processor), .013
with DCGANs (.8614, three seeds). Past .8742 the local models decide, which alone are .0113 below the paper's:
networks twice as wide are alone at .8773, and their vote on the samples of DCGANs gives a global model of .8725
(above). Labels of a better model do not help: that of all real images, at .9130, labels a fifth of the generated
samples otherwise than the vote, and the global model ends .032 lower. On images that are hardly clothes, five models
that must agree do better than one."""
IMAGES = (
    "The paper gives neither its networks nor its loss nor its optimizers; ours are small. Steps, samples and epochs "
    "decide: runs with fewer of them have worse samples, and a global model below the standalone ones. "
)
DIFFERENCES = {
    "adult": (
        "The paper gives neither the encoding in 88 features nor any setting of its models, and ours do better "
        "alone: standalone and baseline are above its figures. Better local models leave the global one less to "
        "gain. The paper reports one run a setting, as far as it says."
    ),
    "mnist": IMAGES
    + (
        "With the paper's T and all samples a plain GAN in every party comes to .9765. DCGANs do a little better "
        "(.9794, above the standalone .9768 in three seeds of three), GANs and DCGANs mixed as well (.9788, above "
        "it, one). What the global model gains grows with the parties, whose own examples get fewer: .0031 of ten, "
        ".0091 of twenty (three seeds each). "
        "**A VAE learns nothing here**, and its samples stay noise: its loss, an average over pixels from -.42 to "
        "2.82, begins at 2.5 for every digit, above C = 1, and a loss that Algorithm 1 clips has no gradient. Of "
        "clothes, which it does learn, a twelfth begin below 1. The sound variant with T = 10,000, a GAN in every "
        "party, ends with specks: of the samples that its vote keeps, 97 to 99% are labelled 8 (three seeds)."
    ),
    "fashion-mnist": IMAGES
    + (
        "Of clothes a plain GAN makes grainy samples, nearly half of them of three classes, and a fifth is dropped "
        "by the vote; a VAE's are blurred and do better, a DCGAN's best. **The kind of generator is worth two points "
        "here**: GAN .8422, VAE .8540, GANs and DCGANs mixed .8551, DCGAN .8614. **The networks' width is worth one"
        " more**: with DCGANs and all networks twice as wide the global model ends at .8725, the standalone ones at"
        " .8773, where the paper's are at .8760 (five seeds). The width was chosen by what parties reach alone on the "
        "test examples, one seed; of seeds 1 and 2 the generators are those of the DCGANs' runs above. "
        "With five parties it stays below the standalone ones in all of these, by "
        ".0042 with DCGANs; that of twenty, with GANs, is .0084 above its own (three seeds of three). The sound "
        "variant with T = 10,000, a GAN in every party, collapses: of the samples that its vote keeps, 97 to 99% have "
        "one of two labels (three seeds)."
    ),
}
