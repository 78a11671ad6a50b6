#!/usr/bin/env bash
# test: label=tree timeout=30
# The presets are the recipes of the paper: weights by the counting formula, heads of the right width, tokens a step.
set -uo pipefail
cd "$DTX_SOURCE/launch/presets" || exit 1
failed=0
while read -r name weights head_dim tokens; do
    got=$(awk '
    /^[a-z]+:$/ { group = $1; sub(":", "", group); next }
    /^  [a-z_]+: / { key = $1; sub(":", "", key); v[group "." key] = $2 }
    END {
        L = v["model.layers"]; D = v["model.width"]; h = v["model.heads"]; ffn = v["model.ffn"]
        d = D / (2 * h); r = v["model.kv_heads"] ? h / v["model.kv_heads"] : 1
        n = L * (2 * D * D + 2 * D * D / r + 3 * D * ffn + 2 * D + 4 * d + 2 * d) + D + v["model.vocab"] * D
        printf "%.0f %g %.0f", n, d, v["train.length"] * v["train.batch"]
    }' "$name.yaml")
    if [ "$got" != "$weights $head_dim $tokens" ]; then
        echo "$name.yaml: weights, head width, tokens a step are $got, expected $weights $head_dim $tokens"
        failed=1
    fi
done <<'END'
bench-124m 123591936 64 4096
diff-830m 833608704 96 262144
diff-1.4b 1413271552 128 262144
diff-2.8b 2794482176 128 262144
diff-6.8b 6836744192 128 262144
diff-13b 13123046400 128 262144
diff-3b 3479175168 128 4194304
END
exit "$failed"
