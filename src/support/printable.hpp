// Text from files, made fit for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace backpass {

bool is_utf8(std::string_view text);

/// Whether `text` is UTF-8 without NULs, and so means the same in every language and message. Names have to be.
bool is_text(std::string_view text);

/// `text` with control characters (but line ends) and what is not UTF-8 replaced by '?', at most `longest` bytes of it:
/// a name in a hostile file can neither hide the rest of a message, nor command a terminal, nor break whoever decodes
/// the message.
std::string readable(std::string_view text, std::size_t longest = std::string_view::npos);

/// A name: the same in quotes, on one line, at most 200 bytes of it.
std::string printable(std::string_view name);

}  // namespace backpass
