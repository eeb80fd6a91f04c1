"""Files, trees and watches of a caller's, each in a short-lived child of init."""
