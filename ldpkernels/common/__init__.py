# SPDX-License-Identifier: Apache-2.0
"""What every other room needs: checks of arguments, dtypes, keys, backends, optional packages, pictures."""
