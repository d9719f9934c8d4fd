// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/unclosed_text.hpp"

#include <cstddef>

namespace rnbd {
namespace {

/// Reads a document from its front and knows the place.
class Scanner {
 public:
  explicit Scanner(std::string_view rest) : rest_{rest} {}

  bool at_end() const { return rest_.empty(); }
  bool sees(std::string_view what) const { return rest_.starts_with(what); }
  bool sees_quote() const { return sees("\"") || sees("'"); }

  void skip() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // the first byte of a character
      ++column_;
    }
  }
  void skip(std::size_t count) {
    for (; count > 0 && !at_end(); --count) skip();
  }

  /// Of a text that begins here; nothing when it is complete, which leaves the place behind it.
  std::optional<UnclosedText> skip_text() {
    std::string end{rest_.substr(0, 1)};
    const bool has_escapes = end == "\"";
    const std::string three = end + end + end;
    const bool of_lines = sees(three);
    if (of_lines) end = three;
    UnclosedText text{line_, column_, end};
    skip(end.size());
    while (!at_end() && (of_lines || !sees("\n"))) {
      if (sees(end)) {
        skip(end.size());
        // Two more may belong to the text: """a""" ends behind the fifth quote of """a""""".
        while (of_lines && sees(end.substr(0, 1))) skip();
        return std::nullopt;
      }
      const bool escape = has_escapes && sees("\\");
      text.escaped_quote |= escape && sees("\\\"");
      skip(escape && !sees("\\\n") ? 2 : 1);
    }
    return text;
  }

 private:
  std::string_view rest_;
  unsigned line_ = 1;
  unsigned column_ = 1;
};

}  // namespace

std::optional<UnclosedText> find_unclosed_text(std::string_view document) {
  Scanner scanner{document};
  while (!scanner.at_end()) {
    if (scanner.sees("#")) {
      while (!scanner.at_end() && !scanner.sees("\n")) scanner.skip();
    } else if (scanner.sees_quote()) {
      if (auto text = scanner.skip_text()) return text;
    } else {
      scanner.skip();
    }
  }
  return std::nullopt;
}

}  // namespace rnbd
