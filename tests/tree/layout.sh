#!/usr/bin/env bash
# test: label=tree timeout=30
# The top level is exactly what the design lists, folder READMEs stay short, nothing half done or private is committed.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1
failed=0
fault() { echo "$*"; failed=1; }

# Files that git does not ignore; without git all but what .gitignore names.
list() {
    git ls-files -co --exclude-standard 2>/dev/null ||
        find . \( -path ./.git -o -path './build*' -o -path ./quickstart -o -path ./.cache \) -prune -o -type f -print |
        sed 's|^\./||'
}
files=$(list | while read -r f; do [ -e "$f" ] && echo "$f"; done)
[ "$(wc -l <<<"$files")" -ge 20 ] || fault "the check sees no files"

allowed=" CMakeLists.txt CMakePresets.json README.md LICENSE .ci .clang-format .gitignore kernels parallel data trainer checkpoints launch tests "
while read -r name; do
    [[ $allowed == *" $name "* ]] || fault "$name: does not belong to the top level"
done < <(cut -d/ -f1 <<<"$files" | sort -u)
for name in CMakeLists.txt CMakePresets.json LICENSE .ci/run .clang-format .gitignore; do
    grep -qx -- "$name" <<<"$files" || fault "$name: is missing"
done

while read -r readme; do
    lines=$(wc -l <"$readme")
    [ "$readme" = README.md ] || [ "$lines" -le 120 ] || fault "$readme: $lines lines, at most 120"
done < <(grep -E '(^|/)README\.md$' <<<"$files")

sources=$(grep -E '\.([ch]|cu|def|sh|txt|md|yaml|sbatch|py)$' <<<"$files" | grep -vE '^(tests/golden/.*\.h5|LICENSE)')
while read -r hit; do
    fault "$hit: finish it or put it into an issue"
done < <(xargs -d '\n' grep -nwE 'TO''DO|FIX''ME|X''XX' <<<"$sources" | cut -c1-160)

exit "$failed"
