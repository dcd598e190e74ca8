#include "base/trust.hpp"

#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

// Plug-ins also compile this file, so it depends only on the standard library.
namespace isthmus {
namespace {

struct trusted_parties {
  std::vector<uid_t> users{0, geteuid()};
  std::vector<gid_t> groups{0};
  bool trusts_everyone = false;

  bool has_user(uid_t id) const { return std::find(users.begin(), users.end(), id) != users.end(); }
  bool has_group(gid_t id) const { return std::find(groups.begin(), groups.end(), id) != groups.end(); }
};

std::string parent_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string resolve_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real_name(realpath(path.c_str(), nullptr), &std::free);
  return real_name == nullptr ? "" : real_name.get();
}

// Users who can modify this library are trusted, because they can already run any code in this process.
trusted_parties find_trusted_parties() {
  trusted_parties parties;
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&check_trusted_path), &self) == 0 || self.dli_fname == nullptr)
    return parties;
  const std::string file = resolve_path(self.dli_fname);
  if (file.empty()) return parties;
  for (const std::string& component : {file, parent_folder(file)}) {
    struct stat status{};
    if (stat(component.c_str(), &status) != 0) continue;
    parties.users.push_back(status.st_uid);
    if ((status.st_mode & S_IWGRP) != 0) parties.groups.push_back(status.st_gid);
    parties.trusts_everyone |= (status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0;
  }
  return parties;
}

// Returns true for a group that is named after the owner and has no other member. Many systems create such a
// group for every user.
bool is_private_group(gid_t group, uid_t owner) {
  std::array<char, 16384> user_text, group_text;
  passwd user{}, *user_result = nullptr;
  struct group members{}, *group_result = nullptr;
  if (getpwuid_r(owner, &user, user_text.data(), user_text.size(), &user_result) != 0 || user_result == nullptr)
    return false;
  if (getgrgid_r(group, &members, group_text.data(), group_text.size(), &group_result) != 0 ||
      group_result == nullptr)
    return false;
  if (std::strcmp(user.pw_name, members.gr_name) != 0) return false;
  for (char** name = members.gr_mem; *name != nullptr; ++name)
    if (std::strcmp(*name, user.pw_name) != 0) return false;
  return true;
}

std::string describe(const std::string& component, const struct stat& status, const char* rule) {
  char text[256];
  std::snprintf(text, sizeof text, " has owner %u, group %u and mode %04o: ", status.st_uid, status.st_gid,
                static_cast<unsigned>(status.st_mode & 07777));
  char user[64];
  std::snprintf(user, sizeof user, " (this process is user %u)", geteuid());
  return component + text + rule + user;
}

// Returns "" if only trusted users can modify this file or the entries of this folder.
std::string check_component(const std::string& component, const trusted_parties& parties) {
  struct stat status{};
  if (stat(component.c_str(), &status) != 0) return component + " cannot be inspected: " + std::strerror(errno);
  if (!parties.has_user(status.st_uid))
    return describe(component, status, "code is loaded only from files and folders that the user or root owns");
  if (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0) return "";  // its entries are checked instead
  constexpr const char* rule =
      "code is loaded only from files and folders that only the user and root can write";
  if ((status.st_mode & S_IWOTH) != 0 && !parties.trusts_everyone) return describe(component, status, rule);
  if ((status.st_mode & S_IWGRP) != 0 && !parties.trusts_everyone && !parties.has_group(status.st_gid) &&
      !is_private_group(status.st_gid, status.st_uid))
    return describe(component, status, rule);
  return "";
}

}  // namespace

std::string check_trusted_path(const std::string& path) {
  std::string component = resolve_path(path);
  if (component.empty()) return path + " cannot be inspected: " + std::strerror(errno);
  const trusted_parties parties = find_trusted_parties();
  while (true) {
    std::string reason = check_component(component, parties);
    if (!reason.empty() || component == "/") return reason;
    component = parent_folder(component);
  }
}

std::string check_code_path(std::string& path) {
  if (path.empty() || path.front() != '/')
    return path + " is relative: code is never loaded through the working directory; pass an absolute path";
  std::string reason = check_trusted_path(path);
  if (reason.empty()) path = resolve_path(path);
  return reason;
}

}  // namespace isthmus
