#include "selection/profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "base/text.hpp"
#include "base/trust.hpp"

namespace isthmus::selection {
namespace {

namespace fs = std::filesystem;

// Returns the value of a "key : value" line, or nullopt if the line has another key.
std::optional<std::string> value_of(const std::string& line, std::string_view key) {
  if (!line.starts_with(key)) return std::nullopt;
  const auto first = line.find_first_not_of(" \t", line.find(':') + 1);
  if (first == std::string::npos) return std::nullopt;
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// Counts the processors in /proc/cpuinfo. hardware_concurrency is not used because it depends on the affinity
// mask, which launchers set per rank.
void read_cpu(machine_description& result) {
  std::ifstream stream("/proc/cpuinfo");
  // Machines with different kinds of cores have several models. These are names on x86 and ids on Arm.
  std::set<std::string> models;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("processor")) ++result.cores;
    for (const char* key : {"model name", "CPU implementer", "CPU part"}) {
      if (const auto value = value_of(line, key)) models.insert(*value);
    }
  }
  result.cpu_model = fmt::format("{}", fmt::join(models, ", "));
}

// Reads the models from NVIDIA's driver, which works even if /sys shows no PCI devices (containers).
void read_nvidia(machine_description& result) {
  std::error_code error_code;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", error_code)) {
    std::ifstream stream(gpu.path() / "information");
    for (std::string line; std::getline(stream, line);) {
      if (const auto model = value_of(line, "Model")) result.gpus.push_back(*model);
    }
  }
}

// Reads display controllers (class 03) and processing accelerators (class 12) of vendors that have a backend.
void read_pci(machine_description& result) {
  const bool has_nvidia_models = !result.gpus.empty();
  std::error_code error_code;
  for (const auto& device : fs::directory_iterator("/sys/bus/pci/devices", error_code)) {
    const std::string device_class = first_line(device.path() / "class");
    const std::string vendor = first_line(device.path() / "vendor");
    const bool is_gpu = device_class.starts_with("0x03") || device_class.starts_with("0x12");
    const bool has_backend =
        vendor == "0x1002" || vendor == "0x8086" || (vendor == "0x10de" && !has_nvidia_models);
    if (is_gpu && has_backend) result.gpus.push_back(vendor + ":" + first_line(device.path() / "device"));
  }
}

}  // namespace

machine_description detect_machine() {
  machine_description result;
  read_cpu(result);
  read_nvidia(result);
  read_pci(result);
  return result;
}

std::string machine_id(const machine_description& machine) {
  std::string text = fmt::format("{}\n{}\n", machine.cpu_model, machine.cores);
  std::vector<std::string> gpus = machine.gpus;  // the order of the folders is arbitrary
  std::ranges::sort(gpus);
  for (const std::string& gpu : gpus) text += gpu + "\n";
  return fmt::format("{:016x}", fnv1a(text));
}

std::string user_config_folder() {
  const char* xdg = environment_variable("XDG_CONFIG_HOME");
  if (xdg != nullptr && *xdg == '/') return (fs::path(xdg) / "isthmus").string();
  const char* home = environment_variable("HOME");
  if (home != nullptr && *home == '/') return (fs::path(home) / ".config" / "isthmus").string();
  return "";
}

std::string profile_path(const machine_description& machine) {
  const std::string folder = user_config_folder();
  return folder.empty() ? "" : fmt::format("{}/profile-{}.toml", folder, machine_id(machine));
}

}  // namespace isthmus::selection
