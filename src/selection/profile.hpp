// The tuned profile of a machine: where it lies, what it is called, how it is written.
#pragma once

#include <string_view>

#include "selection/selection.hpp"

namespace isthmus::selection {

// What tuning depends on. Two machines that agree in all of it share a profile.
struct machine_description {
  std::string cpu_model;
  int cores = 0;                  // online in the machine, whatever the affinity of this process
  std::vector<std::string> gpus;  // sorted; models where a driver tells them, else PCI ids
};

// Reads /proc and /sys only: no vendor library is loaded and no device is woken. Parts that cannot be
// read are left empty.
machine_description detect_machine();

// 16 hexadecimal digits, stable across runs, processes and versions of Isthmus.
std::string machine_id(const machine_description& machine);

// $XDG_CONFIG_HOME/isthmus, or $HOME/.config/isthmus; "" when neither variable is set.
std::string user_config_folder();

// user_config_folder()/profile-<machine_id>.toml; "" without a folder. What load_configuration reads when
// ISTHMUS_PROFILE is not set, and where `isthmus tune` writes.
std::string profile_path(const machine_description& machine);

// A profile as TOML text: `comment` (any number of lines) and one [[rule]] for each rule, in order.
// Reading it back gives rules with the same text; the sources are not written.
std::string write_profile(const std::vector<selection_rule>& rules, std::string_view comment);

}  // namespace isthmus::selection
