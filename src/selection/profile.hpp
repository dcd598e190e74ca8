// Location and name of the tuning profile of a machine.
#pragma once

#include <string>
#include <vector>

namespace isthmus::selection {

// The properties of a machine that tuning depends on. Machines with equal properties share a profile.
struct machine_description {
  std::string cpu_model;
  int cores = 0;                  // online cores of the machine, regardless of this process's affinity
  std::vector<std::string> gpus;  // model names if the driver reports them, otherwise PCI ids
};

// Reads only /proc and /sys, so that no vendor library is loaded and no device wakes up. Properties that cannot
// be read are left empty.
machine_description detect_machine();

// Returns 16 hexadecimal digits that are stable across runs, processes and versions of Isthmus.
std::string machine_id(const machine_description& machine);

// Returns $XDG_CONFIG_HOME/isthmus or $HOME/.config/isthmus, or "" if neither variable is set.
std::string user_config_folder();

// Returns user_config_folder()/profile-<machine_id>.toml, or "" if there is no such folder. load_configuration
// reads this file if ISTHMUS_PROFILE is not set, and `isthmus tune` writes it.
std::string profile_path(const machine_description& machine);

}  // namespace isthmus::selection
