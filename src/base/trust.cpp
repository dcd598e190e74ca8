#include "base/trust.hpp"

#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>

// Plug-ins and preloaded libraries also compile this file. The latter depend only on the C library.
namespace isthmus {
namespace {

struct trusted_parties {
  static constexpr std::size_t capacity = 4;
  uid_t users[capacity] = {0, geteuid()};
  gid_t groups[capacity] = {0};
  std::size_t user_count = 2, group_count = 1;
  bool trusts_everyone = false;

  bool has_user(uid_t id) const {
    for (std::size_t i = 0; i < user_count; ++i)
      if (users[i] == id) return true;
    return false;
  }
  bool has_group(gid_t id) const {
    for (std::size_t i = 0; i < group_count; ++i)
      if (groups[i] == id) return true;
    return false;
  }
};

// Replaces a path by that of its folder. The path is absolute and has no trailing slash.
void remove_last_component(char* path) {
  char* const slash = std::strrchr(path, '/');
  slash[slash == path ? 1 : 0] = '\0';
}

// Users who can modify this library are trusted, because they can already run any code in this process.
trusted_parties find_trusted_parties() {
  trusted_parties parties;
  Dl_info self{};
  char component[PATH_MAX];
  if (dladdr(reinterpret_cast<const void*>(&find_untrusted), &self) == 0 || self.dli_fname == nullptr ||
      realpath(self.dli_fname, component) == nullptr)
    return parties;
  for (int i = 0; i < 2; ++i, remove_last_component(component)) {  // the file and its folder
    struct stat status{};
    if (stat(component, &status) != 0) continue;
    parties.users[parties.user_count++] = status.st_uid;
    if ((status.st_mode & S_IWGRP) != 0) parties.groups[parties.group_count++] = status.st_gid;
    parties.trusts_everyone |= (status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0;
  }
  return parties;
}

// Returns true for a group that is named after the owner and has no other member. Many systems create such a
// group for every user.
bool is_private_group(gid_t group, uid_t owner) {
  char user_text[16384], group_text[16384];
  passwd user{}, *user_result = nullptr;
  struct group members{}, *group_result = nullptr;
  if (getpwuid_r(owner, &user, user_text, sizeof user_text, &user_result) != 0 || user_result == nullptr)
    return false;
  if (getgrgid_r(group, &members, group_text, sizeof group_text, &group_result) != 0 || group_result == nullptr)
    return false;
  if (std::strcmp(user.pw_name, members.gr_name) != 0) return false;
  for (char** name = members.gr_mem; *name != nullptr; ++name)
    if (std::strcmp(*name, user.pw_name) != 0) return false;
  return true;
}

bool describe(trust_problem& reason, const char* component, const struct stat& status, const char* rule) {
  std::snprintf(reason.text, sizeof reason.text,
                "%s has owner %u, group %u and mode %04o: %s (this process is user %u)", component,
                status.st_uid, status.st_gid, static_cast<unsigned>(status.st_mode & 07777), rule, geteuid());
  return true;
}

bool describe_error(trust_problem& reason, const char* path) {
  std::snprintf(reason.text, sizeof reason.text, "%s cannot be inspected: %s", path, std::strerror(errno));
  return true;
}

// Returns false if only trusted users can modify this file or the entries of this folder.
bool is_untrusted(const char* component, const trusted_parties& parties, trust_problem& reason) {
  struct stat status{};
  if (stat(component, &status) != 0) return describe_error(reason, component);
  if (!parties.has_user(status.st_uid))
    return describe(reason, component, status,
                    "code is loaded only from files and folders that the user or root owns");
  if (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0) return false;  // its entries are checked
  constexpr const char* rule =
      "code is loaded only from files and folders that only the user and root can write";
  if ((status.st_mode & S_IWOTH) != 0 && !parties.trusts_everyone)
    return describe(reason, component, status, rule);
  if ((status.st_mode & S_IWGRP) != 0 && !parties.trusts_everyone && !parties.has_group(status.st_gid) &&
      !is_private_group(status.st_gid, status.st_uid))
    return describe(reason, component, status, rule);
  return false;
}

}  // namespace

bool find_untrusted(const char* path, trust_problem& reason, char* resolved) {
  char component[PATH_MAX];
  if (realpath(path, component) == nullptr) return describe_error(reason, path);
  if (resolved != nullptr) std::strcpy(resolved, component);
  const trusted_parties parties = find_trusted_parties();
  while (true) {
    if (is_untrusted(component, parties, reason)) return true;
    if (std::strcmp(component, "/") == 0) return false;
    remove_last_component(component);
  }
}

bool find_untrusted_code(const char* path, char* resolved, trust_problem& reason) {
  if (path[0] == '/') return find_untrusted(path, reason, resolved);
  std::snprintf(reason.text, sizeof reason.text,
                "%s is relative: code is never loaded through the working directory; pass an absolute path",
                path);
  return true;
}

}  // namespace isthmus
