// The rows of a sweep -> the published claims beside them, and why a figure goes the other way, out of the
// figures. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reproduce_rows.h"

namespace grace::app {

// rows: nodes and devices equal, then r ascending from 0, then free.
std::vector<Claim> size_bound_claims(std::span<const Row> rows);
std::vector<std::string> size_bound_notes(std::span<const Row> rows);

// rows: none; the most activated, the most collaborating under WRR; the same under TAR.
std::vector<Claim> copy_what_claims(std::span<const Row> rows);
std::vector<std::string> copy_what_notes(std::span<const Row> rows, std::span<const Claim> claims);

// of_group: from no expert of the heaviest group to all of it; everything: data parallelism, or null.
std::vector<Claim> copies_claims(std::span<const Row> of_group, const Row* everything);
std::vector<std::string> copies_notes(std::span<const Row> of_group, const Row* everything);

}  // namespace grace::app
