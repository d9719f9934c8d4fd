// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/advice.hpp"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "bridge/protocol/closest.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;

/// Links that lead to links end somewhere.
constexpr int kMaxLinks = 8;

bool is_below(const fs::path& path, std::string_view folder) {
  return path.native().starts_with(folder);
}

/// True below /dev, where the kernel and udev put device nodes. /dev/shm holds files.
bool is_place_of_devices(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  const fs::path& where = error ? path : real;
  return is_below(where, "/dev/") && !is_below(where, "/dev/shm/");
}

bool is_place_of_the_kernel(const fs::path& path) {
  return is_below(path, "/proc/") || is_below(path, "/sys/");
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path{"."};
}

/// Quotes the text so that a shell takes it for one word.
std::string quoted_for_shell(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+,-@%=";
  if (text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (std::string_view{"\"\\$`"}.find(c) != std::string_view::npos) quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

/// "the most similar name beside it is 'disk0'; ", or "" if none is similar.
std::string similar_beside(const fs::path& path) {
  constexpr std::size_t kMostNames = 1000;
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry{folder_of(path), error};
  for (; !error && entry != fs::directory_iterator{} && names.size() < kMostNames;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  const std::string similar = closest(path.filename().native(), names);
  return similar.empty() ? "" : "the most similar name beside it is " + in_quotes(similar) + "; ";
}

std::string advice(const fs::path& path, int links) {
  std::error_code error;
  if (links < kMaxLinks && fs::is_symlink(path, error)) {
    const fs::path target = path.parent_path() / fs::read_symlink(path, error);
    return "it is a link to " + target.lexically_normal().native() + ": " +
           advice(target, links + 1);
  }
  if (is_place_of_devices(path)) {
    return "there is no such device; plug it in, or activate it (see lsblk)";
  }
  const bool elsewhere = path.native().find(':') != std::string::npos;
  if (elsewhere && !path.has_parent_path()) {
    return "there is no such file, and no backend begins like that; write a PATH, memory:SIZE, "
           "null:SIZE, nbd:URI, fault:OPTIONS:SPEC or delay:OPTIONS:SPEC";
  }
  const fs::path folder = folder_of(path);
  if (!fs::exists(folder, error)) {
    return "there is no directory " + folder.native() + "; " + similar_beside(folder) +
           "mount it, or make it first";
  }
  if (is_place_of_the_kernel(path)) return "there is no such file";
  return "there is no such file; " + similar_beside(path) +
         "if the path is right, and the file is to be created: 'truncate -s SIZE " +
         quoted_for_shell(path.native()) + "'";
}

}  // namespace

std::string advice_for_missing(const std::string& path) { return advice(path, 0); }

}  // namespace rnbd
