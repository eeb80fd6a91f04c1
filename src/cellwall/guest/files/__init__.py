"""Operations on a caller's files, trees and watches; the long ones run in children of init."""
